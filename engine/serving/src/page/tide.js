// The last two minutes: memory by format, below what the same tokens would take at 16 bit.

import { brush, colour, ofBits, onChange, size } from "./colours.js";

const canvas = document.getElementById("tide");
const legend = document.getElementById("formats");
/** Seconds from the left to the right. */
const SPAN = 120;

/** Looks of the last minutes, oldest first: bytes by bits, promised and at 16 bit. */
let looks = [];

/** Bytes by bits of a code, widest first. */
function byBits(pool) {
  const sums = new Map();
  for (const { bits, bytes } of pool.formats) sums.set(bits, (sums.get(bits) ?? 0) + bytes);
  return sums;
}

function paint() {
  const { context, width, height } = brush(canvas);
  if (looks.length === 0 || width === 0) return;
  const last = looks.at(-1);
  const needs = looks.map((look) => look.whole);
  const most = Math.max(last.total * 1.08, ...needs.map((need) => need * 1.04));
  const x = (look) => width - ((last.seconds - look.seconds) / SPAN) * width;
  const y = (bytes) => height - (bytes / most) * height;

  context.fillStyle = colour("well");
  context.fillRect(0, y(last.total), width, height - y(last.total));
  const kinds = [...new Set(looks.flatMap((look) => [...look.bits.keys()]))];
  kinds.sort((a, b) => a - b);
  // From the bottom: the fewest bits first, so that what has ebbed stays down.
  const below = looks.map(() => 0);
  for (const kind of kinds) {
    context.beginPath();
    looks.forEach((look, i) => context.lineTo(x(look), y(below[i])));
    for (let i = looks.length - 1; i >= 0; i -= 1) {
      below[i] += looks[i].bits.get(kind) ?? 0;
      context.lineTo(x(looks[i]), y(below[i]));
    }
    context.fillStyle = ofBits(kind);
    context.fill();
  }
  const stroke = (value, name, dash) => {
    context.beginPath();
    looks.forEach((look) => context.lineTo(x(look), y(value(look))));
    context.setLineDash(dash);
    context.strokeStyle = colour(name);
    context.lineWidth = 1.6;
    context.stroke();
    context.setLineDash([]);
  };
  stroke((look) => look.whole, "need", [5, 4]);
  context.fillStyle = colour("soft");
  context.fillRect(0, y(last.total), width, 1);
  context.font = "11px system-ui, sans-serif";
  context.fillText(`pool, ${size(last.total)}`, 6, y(last.total) + 13);
  context.fillText("2 minutes ago", 6, height - 5);
  if (last.whole > last.total) {
    context.fillStyle = colour("need");
    context.fillText(`at 16 bit: ${size(last.whole)}`, 6, 12);
  }
}

function tellFormats(pool) {
  const sums = [...byBits(pool)].sort((a, b) => b[0] - a[0]).filter(([, bytes]) => bytes > 0);
  const keys = sums.map(([bits, bytes]) => {
    const key = document.createElement("span");
    key.className = "key";
    const patch = document.createElement("i");
    patch.className = "format";
    patch.style.background = ofBits(bits);
    key.append(patch, `${bits} bit: ${size(bytes)}`);
    return key;
  });
  const held = pool.bytes_live + pool.bytes_cached;
  const need = document.createElement("span");
  const factor = held > 0 ? whole(pool) / held : 1;
  need.textContent =
    factor > 1.005
      ? `at 16 bit the same tokens would take ${size(whole(pool))} (× ${factor.toFixed(1)})`
      : "formats of the pages held, over the last two minutes";
  legend.replaceChildren(...keys, need);
}

/** Bytes that the same tokens would take at 16 bit. */
function whole(pool) {
  return ((pool.bytes_live + pool.bytes_cached) * 16) / Math.max(pool.stored_bits, 0.1);
}

export function show(pool) {
  if (looks.length > 0 && pool.seconds < looks.at(-1).seconds) looks = [];
  if (pool.seconds !== looks.at(-1)?.seconds) {
    const { seconds, bytes_total: total } = pool;
    looks.push({ seconds, total, bits: byBits(pool), whole: whole(pool) });
    looks = looks.filter((look) => look.seconds >= seconds - SPAN - 2);
  }
  paint();
  tellFormats(pool);
}

export function start() {
  onChange(paint);
  new ResizeObserver(paint).observe(canvas);
}
