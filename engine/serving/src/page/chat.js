// Chat with the served model, as any client of the API does.

import { events, keepKey, key, post } from "./api.js";
import { swap } from "./buttons.js";
import { bitsText, ofBits, onChange } from "./colours.js";

const at = (id) => document.getElementById(id);
const log = at("log");

/** What has been said, without the system message. */
let said = [];
/** Stops the answer that is on its way. */
let running = null;

/** A field's number; nothing where the field is empty. */
function number(id) {
  const text = at(id).value.trim();
  return text === "" ? undefined : Number(text);
}

/** The request that continues the conversation. */
function request() {
  const system = at("system").value.trim();
  const messages = system ? [{ role: "system", content: system }, ...said] : said;
  return {
    messages,
    stream: true,
    stream_options: { include_usage: true },
    max_tokens: number("max-tokens"),
    temperature: number("temperature"),
    top_p: number("top-p"),
    top_k: number("top-k"),
    seed: number("seed"),
    min_kv_bits: number("bits"),
  };
}

function add(role) {
  at("hint")?.remove();
  const article = document.createElement("article");
  article.className = `said ${role}`;
  article.setAttribute("aria-label", role === "user" ? "You" : "Answer");
  const text = document.createElement("p");
  const end = document.createElement("footer");
  article.append(text, end);
  log.append(article);
  return { article, text, end };
}

/** Changes the log, and keeps its end in sight if it was. */
function change(edit) {
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  edit();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

/** What an answer read, and how fast it came. */
function tellEnd(end, { ebb, usage, reason, seconds }) {
  const add = (text, bits) => {
    const part = document.createElement("span");
    if (bits) {
      const patch = document.createElement("i");
      patch.dataset.bits = bits;
      patch.style.background = ofBits(bits);
      part.append(patch);
    }
    part.append(text);
    end.append(part);
  };
  if (ebb) {
    add(`read at ${bitsText(ebb.mean_kv_bits)} bit on average`, ebb.mean_kv_bits);
    add(`lowest ${ebb.lowest_kv_bits} bit`, ebb.lowest_kv_bits);
  }
  if (usage) {
    const cached = usage.prompt_tokens_details.cached_tokens;
    add(`${usage.prompt_tokens} prompt tokens, ${cached} cached`);
    const count = usage.completion_tokens;
    // The time begins with the first token, so that one is not counted.
    const rate = count > 1 && seconds > 0 ? `, ${((count - 1) / seconds).toFixed(1)} tokens/s` : "";
    add(`${count} ${count === 1 ? "token" : "tokens"}${rate}`);
  }
  if (reason === "length") add("cut at the most tokens");
}

function setRunning(controller) {
  running = controller;
  if (running) swap(at("send"), at("stop"));
  else swap(at("stop"), at("send"));
}

async function ask(question) {
  said.push({ role: "user", content: question });
  add("user").text.textContent = question;
  const body = request();
  const answer = add("assistant");
  answer.article.classList.add("running");
  // Screen readers hear the whole answer, not each token.
  answer.article.setAttribute("aria-busy", "true");
  answer.end.textContent = "waiting for the first token";
  log.scrollTop = log.scrollHeight;
  const controller = new AbortController();
  setRunning(controller);
  const asked = said;
  let [text, ebb, usage, reason, first] = ["", null, null, null, null];
  try {
    for await (const event of events(await post("/v1/chat/completions", body, controller.signal))) {
      usage = event.usage ?? usage;
      const choice = event.choices[0];
      if (!choice) continue;
      ebb = choice.ebb ?? ebb;
      reason = choice.finish_reason ?? reason;
      if (!choice.delta.content) continue;
      if (first === null) answer.end.textContent = "";
      first ??= performance.now();
      text += choice.delta.content;
      change(() => (answer.text.textContent = text));
    }
    const seconds = first === null ? 0 : (performance.now() - first) / 1000;
    answer.end.textContent = "";
    change(() => tellEnd(answer.end, { ebb, usage, reason, seconds }));
  } catch (error) {
    const stopped = controller.signal.aborted;
    if (!stopped) answer.end.classList.add("failed");
    change(() => (answer.end.textContent = stopped ? "stopped" : error.message));
  }
  answer.article.classList.remove("running");
  answer.article.removeAttribute("aria-busy");
  setRunning(null);
  // A question without an answer is asked again, not repeated.
  if (text) asked.push({ role: "assistant", content: text });
  else if (asked.at(-1)?.role === "user") asked.pop();
}

function send() {
  const question = at("question").value.trim();
  if (!question || running) return;
  at("question").value = "";
  ask(question);
}

/** Makes the chat's controls work. */
export function start() {
  at("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  at("question").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") running?.abort();
  });
  at("stop").addEventListener("click", () => {
    running?.abort();
    at("question").focus();
  });
  at("forget").addEventListener("click", () => {
    running?.abort();
    said = [];
    log.replaceChildren();
    at("question").focus();
  });
  at("fields").addEventListener("submit", (event) => event.preventDefault());
  onChange(() => {
    for (const patch of log.querySelectorAll("[data-bits]")) {
      patch.style.background = ofBits(Number(patch.dataset.bits));
    }
  });
  at("key").value = key();
  at("key").addEventListener("change", () => keepKey(at("key").value.trim()));
  at("question").focus();
}
