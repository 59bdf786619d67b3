// Asking the explorer: JSON in and out, errors as sentences, jobs followed to their end.

const token = document.querySelector('meta[name="keyhole-token"]').content;

export class Refused extends Error {}

async function answered(response) {
  let data;
  try {
    data = await response.json();
  } catch {
    data = {};
  }
  if (!response.ok) throw new Refused(data.sentence || `The explorer answered with ${response.status}.`);
  return data;
}

async function reached(address, options) {
  try {
    return await fetch(address, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The explorer does not answer any more. Start it again with keyhole ui, then reload this page.");
  }
}

export async function get(address, signal) {
  return answered(await reached(address, { signal }));
}

export async function post(address, data, signal) {
  const headers = { "Content-Type": "application/json", "X-Keyhole-Token": token };
  return answered(await reached(address, { method: "POST", headers, body: JSON.stringify(data), signal }));
}

// The newest answer wins: a question asked while another is on its way replaces it.
export function latest(ask) {
  let current;
  return async (...values) => {
    current?.abort();
    const mine = (current = new AbortController());
    try {
      const answer = await ask(...values, mine.signal);
      return mine === current ? answer : undefined;
    } catch (error) {
      if (error.name === "AbortError" || mine !== current) return undefined;
      throw error;
    }
  };
}

const pause = time => new Promise(done => setTimeout(done, time));

export async function follow(id, hear, signal) {
  let next = 0;
  for (;;) {
    const seen = await get(`/api/jobs/${id}?after=${next}`, signal);
    next = seen.next;
    hear(seen);
    if (seen.state !== "running") return seen;
    await pause(90);
    if (signal?.aborted) throw new DOMException("", "AbortError");
  }
}

export const cancel = id => post(`/api/jobs/${id}/cancel`, {});
