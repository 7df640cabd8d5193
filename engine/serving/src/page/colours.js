// What stands for bits, requests and the rest, in the light and in the dark.

const dark = matchMedia("(prefers-color-scheme: dark)");
let known = new Map();
dark.addEventListener("change", () => {
  known = new Map();
});

/** Calls back when everything has other colours. */
export function onChange(callback) {
  dark.addEventListener("change", callback);
}

/** A colour of page.css by its name. */
export function colour(name) {
  if (!known.has(name)) {
    const style = getComputedStyle(document.documentElement);
    known.set(name, style.getPropertyValue(`--${name}`).trim());
  }
  return known.get(name);
}

const STOPS = [2, 4, 8, 16];

const parts = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** From 16 bit, deep water, to 2 bit, sand: even steps are halvings. */
export function ofBits(bits) {
  const name = `at-${bits.toFixed(2)}`;
  if (!known.has(name)) {
    const place = Math.min(3, Math.max(0, Math.log2(bits) - 1));
    const low = Math.min(2, Math.floor(place));
    const [from, to] = [low, low + 1].map((at) => parts(colour(`bits-${STOPS[at]}`)));
    const mixed = from.map((part, i) => Math.round(part + (to[i] - part) * (place - low)));
    known.set(name, `rgb(${mixed.join(" ")})`);
  }
  return known.get(name);
}

/** What can be read on the colour of so many bits. */
export function inkOn(bits) {
  const [r, g, b] = ofBits(bits).match(/\d+/g);
  return 0.3 * r + 0.6 * g + 0.1 * b > 125 ? "#0b1a26" : "#ffffff";
}

/** Neighbouring numbers get colours far apart. */
export function ofRequest(number) {
  return `hsl(${Math.round(number * 137.508) % 360} 70% ${dark.matches ? 66 : 45}%)`;
}

/** A canvas's context in CSS pixels, cleared, with its size. */
export function brush(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const scale = devicePixelRatio || 1;
  const [w, h] = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

const MIB = 1 << 20;

export function size(bytes) {
  if (bytes >= 1024 * MIB) return `${(bytes / (1024 * MIB)).toFixed(1)} GiB`;
  if (bytes >= 100 * MIB) return `${Math.round(bytes / MIB)} MiB`;
  return `${(bytes / MIB).toFixed(1)} MiB`;
}

/** Bits in few digits: 16, 7.9, 2.66. */
export function bitsText(bits) {
  return bits >= 10 ? String(Math.round(bits * 10) / 10) : String(Math.round(bits * 100) / 100);
}
