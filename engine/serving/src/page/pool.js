// Looks at the pool while somebody sees the page, and tells what it saw.

import { get } from "./api.js";
import { bitsText, size } from "./colours.js";
import * as map from "./map.js";
import * as requests from "./requests.js";
import * as tide from "./tide.js";

const at = (id) => document.getElementById(id);
/** Between two looks, in milliseconds, and after one that failed. */
const PAUSE = 400;
const PAUSE_FAILED = 1500;
/** Rates are over so many seconds. */
const WINDOW = 3;

let looks = [];
let last = null;

function set(id, text) {
  const element = at(id);
  if (element.textContent !== text) element.textContent = text;
}

function state(kind, text) {
  at("server").dataset.state = kind;
  set("server", text);
}

/** How fast a count rose lately; 0 where nothing was computed. */
function rate(name) {
  const [first, now] = [looks[0], looks.at(-1)];
  const seconds = now.seconds - first.seconds;
  return seconds > 0 ? (now[name] - first[name]) / seconds : 0;
}

function rateText(value) {
  return value >= 100 ? String(Math.round(value)) : value.toFixed(1);
}

function show(pool) {
  if (last && pool.seconds < last.seconds) looks = [];
  last = pool;
  looks.push(pool);
  while (looks.length > 2 && looks[1].seconds < pool.seconds - WINDOW) looks.shift();

  if (!pool.accepting) state("bad", "takes no requests");
  else if (pool.step_age_seconds > 5)
    state("wait", `no step for ${Math.round(pool.step_age_seconds)} s`);
  else state("ready", pool.running > 0 ? "working" : "ready");
  set("model", pool.model);
  const held = pool.bytes_live + pool.bytes_cached;
  set("held", `${size(held)} of ${size(pool.bytes_total)} held, ${pool.mode}`);
  set("rate", rateText(rate("tokens_decode")));
  set("prefill-rate", rateText(rate("tokens_prefill")));
  set("running", String(pool.running));
  set("waiting", String(pool.waiting));
  set("mean", bitsText(pool.stored_bits));
  set("preemptions", String(pool.preemptions));

  const share = (bytes) => Math.min(100, (100 * bytes) / pool.bytes_total);
  at("gauge-held").style.width = `${share(held)}%`;
  at("gauge-floor").style.width = `${share(pool.bytes_promised)}%`;
  set("gauge-held-text", `held now: ${size(held)}`);
  set(
    "gauge-floor-text",
    pool.mode === "preempt-only"
      ? "nothing shrinks in this mode: when memory is full, requests are preempted"
      : `promised at the floor, ${bitsText(pool.floor_bits)} bit: ${size(pool.bytes_promised)}`,
  );
  const [mark] = pool.watermarks_bytes;
  at("gauge-mark").style.left = `${share(pool.bytes_total - mark)}%`;
  at("gauge-mark").hidden = mark === 0;
  at("gauge-mark-text").parentElement.hidden = mark === 0;
  set("gauge-mark-text", "here blocks begin to shrink");
  map.show(pool);
  tide.show(pool);
  requests.show(pool);
}

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

/** Nobody looks at a page behind others, so it does not ask. */
function seen() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
}

/** Looks for ever; `onLook` is told, too. */
export async function start(onLook) {
  const point = (request) => {
    map.point(request);
    requests.point(request);
  };
  map.start(point);
  tide.start();
  requests.start(point);
  for (;;) {
    await seen();
    let look = null;
    try {
      look = await get("/kv_pool");
    } catch (error) {
      const lost = error instanceof TypeError;
      state(lost ? "bad" : "wait", lost ? "the server cannot be reached" : error.message);
      await sleep(PAUSE_FAILED);
      continue;
    }
    // By itself: a fault of the script is no fault of the server, and the looks go on.
    queueMicrotask(() => {
      onLook(look);
      show(look);
    });
    await sleep(PAUSE);
  }
}
