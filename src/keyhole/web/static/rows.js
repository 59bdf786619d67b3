// Columns of a sweep: what they are called, and what a row says in the one that is drawn.

const DONE = ["EXACT", "WITHIN_TOLERANCE"];
export const short = name => name.replace(/^(job|record)\./, "").replaceAll(/[._]/g, " ");

export const called = (figured, name) =>
  name === "success"
    ? "share of verified recoveries"
    : name === "map"
      ? figured.value_name || short(figured.value)
      : short(name);
export const shares = (state, figured) =>
  state.z === "success" || (state.z === "map" && ("value_equals" in figured || "value_at_most" in figured));

function mapped(figured, v) {
  if ("value_equals" in figured) return v === figured.value_equals ? 1 : 0;
  if ("value_at_most" in figured) return typeof v === "number" && v <= figured.value_at_most ? 1 : 0;
  return v;
}

export const value = (held, state, figured, k) =>
  state.z === "map"
    ? mapped(figured, held[figured.value][k])
    : state.z === "success"
      ? held["record.verdict"][k] === undefined || held["record.verdict"][k] === null
        ? null
        : DONE.includes(held["record.verdict"][k])
          ? 1
          : 0
      : held[state.z][k];
export const mean = list => list.reduce((a, b) => a + b, 0) / list.length;
