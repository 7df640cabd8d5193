// The requests as a table: the same as the picture in words and numbers.

import { brush, ofBits, ofRequest, onChange, size } from "./colours.js";

const body = document.getElementById("requests");
/** Rows on the page; the rest is told in one line. */
const MOST = 40;
let pool = null;
let pointed = null;
let report = () => {};

function cell(row, ...children) {
  const td = document.createElement("td");
  td.append(...children);
  row.append(td);
  return td;
}

function patch(colour) {
  const i = document.createElement("i");
  i.style.background = colour;
  return i;
}

function tokens({ phase, prompt_tokens, tokens: held, tokens_max }) {
  if (phase === "waiting" || phase === "preempted") return `0 of ${tokens_max}`;
  if (phase === "prefill") return `${held} of ${prompt_tokens} prompt`;
  return `${held} of ${tokens_max}`;
}

/** The blocks of a sequence in small, oldest first. */
function strip(canvas, cells, most) {
  const { context, width, height } = brush(canvas);
  const all = Math.max(most, 1);
  let x = 0;
  for (const [bits, frames] of cells) {
    const wide = (frames / all) * width;
    context.fillStyle = ofBits(bits);
    context.fillRect(x, 0, Math.max(0.5, wide - (wide > 3 ? 0.7 : 0)), height);
    x += wide;
  }
}

const frames = (cells) => cells.reduce((sum, [, count]) => sum + count, 0);

function draw() {
  if (!pool) return;
  const told = pool.sequences.slice(0, MOST);
  const most = Math.max(...told.map((row) => frames(row.cells)), pool.block_frames);
  const strips = [];
  const rows = told.map((sequence) => {
    const { request, choice, cells } = sequence;
    const row = document.createElement("tr");
    row.classList.toggle("pointed", request === pointed);
    row.addEventListener("pointerenter", () => report(request));
    row.addEventListener("pointerleave", () => report(null));
    cell(row, patch(ofRequest(request)), choice > 0 ? `${request}.${choice}` : `${request}`);
    cell(row, sequence.phase);
    cell(row, tokens(sequence));
    cell(row, patch(ofBits(sequence.lowest_bits)), String(sequence.lowest_bits));
    cell(row, patch(ofBits(sequence.mean_bits)), sequence.mean_bits.toFixed(1));
    const canvas = document.createElement("canvas");
    canvas.setAttribute("aria-hidden", "true");
    cell(row, size(frames(cells) * pool.frame_bytes), " ", canvas);
    strips.push([canvas, cells]);
    return row;
  });
  const left = pool.running + pool.waiting - told.length;
  if (rows.length === 0 || left > 0) {
    const row = document.createElement("tr");
    const text = rows.length === 0 ? "No request runs." : `and ${left} more`;
    cell(row, text).colSpan = 6;
    rows.push(row);
  }
  body.replaceChildren(...rows);
  for (const [canvas, cells] of strips) strip(canvas, cells, most);
}

export function show(look) {
  pool = look;
  draw();
}

/** Marks the rows of one request. */
export function point(request) {
  pointed = request;
  for (const [i, row] of [...body.rows].entries()) {
    row.classList.toggle("pointed", request !== null && pool?.sequences[i]?.request === request);
  }
}

export function start(onPoint) {
  report = onPoint;
  onChange(draw);
}
