// The pool as a vessel that fills from below: one brick a block, as wide as its memory, coloured by
// its bits, with a line in its request's colour. When blocks shrink, what is above sinks.

import { bitsText, brush, colour, inkOn, ofBits, ofRequest, onChange, size } from "./colours.js";

const canvas = document.getElementById("map");
const pointed = document.getElementById("pointed");
const still = matchMedia("(prefers-reduced-motion: reduce)");
/** How long a brick that has shrunk glows, in milliseconds. */
const GLOW = 900;
/** A brick of 16 bit is about so many times as wide as high. */
const SHAPE = 2.4;
/** Rows are at least so high, in pixels. */
const ROW_LEAST = 9;

let bricks = [];
let pool = null;
/** Bits of each request's bricks at the last look, and when they shrank, by owner and place. */
let before = new Map();
let pointedRequest = null;
/** The browser's number of the frame that will paint; 0 where none will. */
let asked = 0;

/** The owners from below, each with its blocks. */
function owners() {
  const own = pool.sequences.filter((row) => row.cells.length > 0);
  own.sort((a, b) => a.request - b.request || a.choice - b.choice);
  const named = own.map((row) => ({
    name: `request ${row.request}`,
    id: `${row.request}.${row.choice}`,
    request: row.request,
    line: ofRequest(row.request),
    cells: row.cells,
  }));
  const rest = [
    { name: "several requests", id: "shared", line: colour("text"), cells: pool.shared },
    { name: "other requests", id: "others", line: colour("soft"), cells: pool.others },
    { name: "the prefix cache alone", id: "cached", cells: pool.cached, hatched: true },
  ];
  return [...named, ...rest.filter((owner) => owner.cells.length > 0)];
}

/** Lays the blocks out, in frames from the bottom on. */
function lay() {
  const now = performance.now();
  const seen = new Map();
  bricks = [];
  let from = 0;
  for (const owner of owners()) {
    owner.cells.forEach(([bits, frames], index) => {
      const id = `${owner.id}/${index}`;
      const last = before.get(id);
      const shrank = last && bits < last.bits - 0.01 ? now : (last?.shrank ?? -GLOW);
      // Elsewhere a place is no block's name: when one is evicted, all behind it move up.
      if (owner.request !== undefined) seen.set(id, { bits, shrank });
      bricks.push({ owner, index, bits, frames, from, shrank, isFirst: index === 0 });
      from += frames;
    });
  }
  if (pool.frames_in_steps > 0) {
    const owner = { name: "steps in flight", id: "steps" };
    bricks.push({ owner, index: 0, frames: pool.frames_in_steps, from, shrank: -GLOW });
  }
  before = seen;
}

/** Rows, and frames in one, so that bricks are bricks. */
function grid(width, height) {
  const cells = pool.frames / (pool.block_frames * pool.blocks_per_cell);
  const rows = Math.sqrt((SHAPE * height * cells) / width);
  const count = Math.round(Math.max(5, Math.min(rows, height / ROW_LEAST)));
  return { count, frames: pool.frames / count, high: height / count };
}

/** The rectangles of frames `from..to`: one for each row that they are in. */
function* pieces({ from, frames }, rows, width, height) {
  let at = from;
  const end = from + frames;
  while (end - at > 1e-6) {
    const row = Math.min(rows.count - 1, Math.floor(at / rows.frames + 1e-9));
    const stop = Math.min(end, (row + 1) * rows.frames);
    const x = ((at - row * rows.frames) / rows.frames) * width;
    const w = ((stop - at) / rows.frames) * width;
    yield { x, y: height - (row + 1) * rows.high, w, h: rows.high };
    if (stop <= at) return;
    at = stop;
  }
}

function hatch(context) {
  const tile = new OffscreenCanvas(7, 7);
  const c = tile.getContext("2d");
  c.strokeStyle = colour("card");
  c.lineWidth = 1.3;
  for (const shift of [-7, 0, 7]) {
    c.beginPath();
    c.moveTo(shift, 7);
    c.lineTo(shift + 7, 0);
    c.stroke();
  }
  return context.createPattern(tile, "repeat");
}

function paint() {
  if (!pool) return;
  const { context, width, height } = brush(canvas);
  if (width === 0) return;
  const rows = grid(width, height);
  const gap = rows.high > 8 ? 1 : 0.5;
  const line = rows.high > 14 ? 4 : Math.max(1, rows.high * 0.2);
  const striped = hatch(context);
  const now = performance.now();
  let glows = false;
  for (const brick of bricks) {
    const { owner } = brick;
    const glow = still.matches ? 0 : Math.max(0, 1 - (now - brick.shrank) / GLOW);
    glows ||= glow > 0;
    let isFirstPiece = brick.isFirst;
    for (const { x, y, w, h } of pieces(brick, rows, width, height)) {
      const wide = Math.max(0.6, w - gap);
      const isPointed = pointedRequest === null || owner.request === pointedRequest;
      context.globalAlpha = (isPointed ? 1 : 0.3) * (owner.hatched ? 0.6 : 1);
      context.fillStyle = brick.bits ? ofBits(brick.bits) : colour("moving");
      context.fillRect(x, y + gap, wide, h - gap);
      if (owner.hatched || !brick.bits) {
        context.fillStyle = striped;
        context.fillRect(x, y + gap, wide, h - gap);
      }
      if (owner.line) {
        context.fillStyle = owner.line;
        context.fillRect(x, y + h - line, wide, line);
      }
      if (glow > 0) {
        context.fillStyle = `rgb(255 255 255 / ${0.75 * glow})`;
        context.fillRect(x, y + gap, wide, h - gap);
      }
      if (isFirstPiece && owner.request !== undefined && h >= 17 && wide >= 26) {
        context.font = "600 11px system-ui, sans-serif";
        context.fillStyle = inkOn(brick.bits);
        context.fillText(owner.request, x + 4, y + gap + 12, wide - 6);
      }
      isFirstPiece = false;
    }
  }
  context.globalAlpha = 1;
  if (glows) paintAgain();
}

/** Paints once more at the next frame, however often it is asked for until then. */
function paintAgain() {
  asked ||= requestAnimationFrame(() => {
    asked = 0;
    paint();
  });
}

/** The brick at a place of the canvas. */
function brickAt(x, y) {
  const { width, height } = canvas.getBoundingClientRect();
  const rows = grid(width, height);
  const row = Math.floor((height - y) / rows.high);
  const frame = (row + Math.min(0.999999, x / width)) * rows.frames;
  return bricks.find((brick) => frame >= brick.from && frame < brick.from + brick.frames);
}

function tell(brick) {
  if (!brick) return "free";
  const memory = size(brick.frames * pool.frame_bytes);
  if (!brick.bits) return `${memory} that a step still reads or writes`;
  const many = pool.blocks_per_cell;
  const what = many > 1 ? `up to ${many} blocks` : `block ${brick.index + 1}`;
  return `${brick.owner.name}: ${what}, ${bitsText(brick.bits)} bit, ${memory}`;
}

/** Blocks by bits in words, for those who do not see the picture. */
function words() {
  const bands = [
    ["16 bit", 12],
    ["8 to 12 bit", 8],
    ["4 to 8 bit", 4],
    ["below 4 bit", 0],
  ];
  const count = (low, high) => bricks.filter(({ bits }) => bits >= low && bits < high).length;
  let high = Infinity;
  const told = bands.map(([name, low]) => {
    const n = count(low, high);
    high = low;
    return n > 0 ? `${n} at ${name}` : "";
  });
  const what = pool.blocks_per_cell > 1 ? "Groups of blocks" : "Blocks";
  return `${what}: ${told.filter(Boolean).join(", ") || "none"}`;
}

/** Draws what the last look saw. */
export function show(look) {
  // Cells that stand for more blocks, and those of a server that began anew, are others.
  const sameCells = pool?.blocks_per_cell === look.blocks_per_cell && pool.seconds <= look.seconds;
  if (!sameCells) before = new Map();
  pool = look;
  lay();
  paint();
  const text = words();
  if (canvas.getAttribute("aria-label") !== text) canvas.setAttribute("aria-label", text);
}

/** Lets the blocks of one request stand out; of all with null. */
export function point(request) {
  pointedRequest = request;
  paint();
}

function paintScale() {
  const scale = brush(document.getElementById("scale"));
  for (let x = 0; x < scale.width; x += 1) {
    scale.context.fillStyle = ofBits(2 ** (4 - (3 * x) / scale.width));
    scale.context.fillRect(x, 0, 1.5, scale.height);
  }
}

export function start(onPoint) {
  paintScale();
  onChange(() => {
    paintScale();
    if (pool) lay();
    paint();
  });
  new ResizeObserver(paint).observe(canvas);
  canvas.addEventListener("pointermove", (event) => {
    if (!pool) return;
    const brick = brickAt(event.offsetX, event.offsetY);
    pointed.textContent = tell(brick);
    onPoint(brick?.owner.request ?? null);
  });
  canvas.addEventListener("pointerleave", () => {
    pointed.textContent = "";
    onPoint(null);
  });
}
