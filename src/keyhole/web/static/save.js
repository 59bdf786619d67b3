// Pictures to keep: a figure as SVG, PNG or CSV. What is saved looks as it is shown, wherever it is opened.

// What styles of the page say of a drawing, written into it: a file has no style sheet.
const LOOK = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "text-anchor"];

function standalone(drawing) {
  const copy = drawing.cloneNode(true),
    shown = [drawing, ...drawing.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, k) => {
    const look = getComputedStyle(shown[k]);
    for (const name of LOOK) if (look.getPropertyValue(name)) node.setAttribute(name, look.getPropertyValue(name));
    node.removeAttribute("class");
  });
  copy.setAttribute("font-family", "system-ui, sans-serif");
  return copy;
}

const escaped = words => words.replace(/[&<>"]/g, c => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const colourOf = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// One part below the other: drawings as they are, canvases enlarged, words of heat maps beside them.
function whole(node) {
  const parts = [...node.querySelectorAll("svg, canvas")].filter(part => part.getBoundingClientRect().width > 0),
    frame = node.getBoundingClientRect();
  const width = Math.ceil(frame.width),
    caption = node.querySelector("figcaption"),
    height = Math.ceil((caption ? caption.getBoundingClientRect().top : frame.bottom) - frame.top) + 8;
  const at = part => {
    const box = part.getBoundingClientRect();
    return [box.left - frame.left, box.top - frame.top, box.width, box.height];
  };
  const inside = parts.map(part => {
    const [x, y, wide, high] = at(part);
    if (part instanceof HTMLCanvasElement)
      return `<image href="${part.toDataURL()}" x="${x}" y="${y}" width="${wide}" height="${high}" preserveAspectRatio="none" image-rendering="pixelated"/>`;
    const copy = standalone(part);
    for (const [name, value] of Object.entries({ x, y, width: wide, height: high })) copy.setAttribute(name, value);
    return new XMLSerializer().serializeToString(copy);
  });
  const words = [...node.querySelectorAll(".heat span")].map(span => {
    const [x, y, wide, high] = at(span),
      turned = span.classList.contains("down");
    const place = turned
      ? `transform="translate(${x + wide / 2 + 4} ${y + high / 2}) rotate(-90)" text-anchor="middle"`
      : `x="${x}" y="${y + 0.75 * high}"`;
    return `<text ${place} font-size="12" fill="${colourOf("limit")}">${escaped(span.textContent)}</text>`;
  });
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" font-family="system-ui, sans-serif"><rect width="${width}" height="${height}" fill="${colourOf("page")}"/>${inside.join("")}${words.join("")}</svg>`;
}

const address = (kind, words) => `data:${kind};charset=utf-8,${encodeURIComponent(words)}`;

function keep(href, name) {
  Object.assign(document.createElement("a"), { href, download: name }).click();
}

function pixels(drawing, done) {
  const image = new Image();
  image.addEventListener("load", () => {
    const canvas = document.createElement("canvas");
    canvas.width = 2 * image.width;
    canvas.height = 2 * image.height;
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    done(canvas.toDataURL("image/png"));
  });
  image.src = address("image/svg+xml", drawing);
}

const quoted = cell => (/[",\n]/.test(cell) ? `"${cell.replaceAll('"', '""')}"` : cell);
const separated = text =>
  `${text
    .split("\n")
    .map(line => line.split("\t").map(quoted).join(","))
    .join("\n")}\n`;

// Called when a button is pressed: the figure is saved as it stands then.
export function save(node, form, copy) {
  const title = node.querySelector("h2, h3, figcaption b")?.textContent || document.title,
    name = `keyhole-${title.toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 60)}`;
  if (form === "SVG") keep(address("image/svg+xml", whole(node)), `${name}.svg`);
  else if (form === "PNG") pixels(whole(node), href => keep(href, `${name}.png`));
  else keep(address("text/csv", separated(copy())), `${name}.csv`);
}
