// Fills the pool with long requests, so that a person sees it shrink.

import { events, post } from "./api.js";
import { swap } from "./buttons.js";

const at = (id) => document.getElementById(id);
const WORDS = ["sea", "wind", "water", "light", "sand", "stone", "storm", "moon", "the", "and"];
/** Share of a request that is its prompt. */
const PROMPT = 0.4;
/** A word is about so many tokens. */
const WORD_TOKENS = 1.1;

let running = null;

/** A text of so many words that begins like no other. */
function prompt(number, words) {
  const word = (i) => WORDS[(i * 7 + number * 3 + (i % (number + 2))) % WORDS.length];
  const text = Array.from({ length: words }, (_, i) => word(i)).join(" ");
  return `Story ${number} of the sea: ${text}`;
}

function tell(text) {
  at("load-state").textContent = text;
}

function setRunning(controller) {
  running = controller;
  if (running) swap(at("load-start"), at("load-stop"));
  else swap(at("load-stop"), at("load-start"));
}

async function run(count, tokens) {
  const words = Math.max(4, Math.round((tokens * PROMPT) / WORD_TOKENS));
  // One call for all: a browser opens few connections to one server.
  const body = {
    prompt: Array.from({ length: count }, (_, i) => prompt(i, words)),
    max_tokens: Math.max(1, Math.round(tokens * (1 - PROMPT))),
    ignore_eos: true,
    // Whoever chats goes first.
    priority: 10,
    stream: true,
  };
  const controller = new AbortController();
  setRunning(controller);
  let [ended, lowest] = [0, 16];
  try {
    tell(`0 of ${count} requests have ended`);
    for await (const event of events(await post("/v1/completions", body, controller.signal))) {
      for (const { ebb } of event.choices) {
        if (!ebb) continue;
        ended += 1;
        lowest = Math.min(lowest, ebb.lowest_kv_bits);
        tell(`${ended} of ${count} requests have ended, the lowest read ${lowest} bit`);
      }
    }
  } catch (error) {
    tell(controller.signal.aborted ? `stopped after ${ended} of ${count} requests` : error.message);
  }
  setRunning(null);
}

/** Requests whose tokens take 2.2 times the pool at 16 bit, each no longer than the model can. */
export function suggest(look) {
  const field = at("load-tokens");
  if (field.dataset.known) return;
  field.dataset.known = "yes";
  const all = (2.2 * look.bytes_total) / look.bytes_per_token;
  const most = Math.min(4000, look.max_context - 8);
  const count = Math.min(256, Math.max(8, Math.ceil(all / most)));
  at("load-count").value = count;
  field.value = Math.max(64, Math.min(Math.round(all / count / 10) * 10, most));
}

export function start() {
  at("load").addEventListener("submit", (event) => {
    event.preventDefault();
    const [count, tokens] = [at("load-count"), at("load-tokens")].map((field) =>
      Number(field.value),
    );
    if (!running) run(count, tokens);
  });
  at("load-stop").addEventListener("click", () => running?.abort());
  at("load-tokens").addEventListener("input", () => {
    at("load-tokens").dataset.known = "yes";
  });
}
