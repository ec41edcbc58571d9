// The page: what is sent, the turns of the conversation, and what the header says of the server.

import { Answer } from "./answer.js";
import { Problem, chat } from "./api.js";
import { TOUCH, WIDE, byId, colourOf, el } from "./page.js";
import { Race } from "./race.js";
import { showRound } from "./round.js";
import { Strip } from "./strip.js";

/** The first has drafts from its first tokens on, the last is long enough for a race. */
const EXAMPLES = [
  "Fix the typos: The weather tomorow will be sunny in the morning, cloudy in the afternoon, and rainy in the evening.",
  "Write a song whose refrain comes back after every verse.",
  "Write a Python class of a shopping cart with add, remove and total.",
];
const LABELS = { gone: "No answer", key: "API key needed", busy: "Full", starting: "Starting" };

const key = () => byId("key").value.trim();
const messages = [];
let model = "";
let running = null;

const strip = new Strip(key, connected, disconnected);

function connected(numbers) {
  model = numbers.model;
  const state = numbers.replicas.length || numbers.hidden ? "ready" : "starting";
  server(state, `${model}, ${state}`);
  const menu = byId("drafter");
  if (menu.options.length === 1) {
    numbers.drafters.forEach(colourOf); // in the order of the config
    menu.append(...numbers.drafters.map((name) => el("option", { value: name }, `only ${name}`)));
    menu.append(el("option", { value: "off" }, "off: the target alone"));
    const classes = Object.keys(numbers.slo_classes);
    byId("slo").firstElementChild.after(...classes.map((name) => el("option", { value: `class ${name}` }, name)));
  }
}

function disconnected(problem) {
  if (problem.kind === "gone") byId("watched").textContent = "numbers from before the server was gone";
  server(problem.kind, LABELS[problem.kind] ?? problem.message);
  if (problem.kind === "key") askForKey();
}

function server(state, text) {
  const shown = byId("server");
  shown.dataset.state = state;
  if (shown.textContent !== text) shown.textContent = text;
}

function askForKey() {
  byId("key-field").hidden = false;
  byId("key").setAttribute("aria-invalid", "true");
}

/** The request's body; raises Problem for settings that are not valid. */
function bodyOf(text) {
  for (const input of document.querySelectorAll("#settings input")) {
    if (!input.checkValidity()) {
      byId("settings").open = true;
      input.focus();
      throw new Problem("refused", `${input.parentElement.firstChild.data.trim()}: ${input.validationMessage}`);
    }
  }
  const number = (id) => (byId(id).value === "" ? null : Number(byId(id).value));
  const system = byId("system").value.trim();
  return {
    model,
    messages: [
      ...(system ? [{ role: "system", content: system }] : []),
      ...messages,
      { role: "user", content: text },
    ],
    temperature: number("temperature"),
    top_p: number("top_p"),
    max_tokens: number("max_tokens"),
    seed: number("seed"),
    slo: sloOf(byId("slo").value, number),
    speculation: speculationOf(byId("drafter").value, number("max_depth")),
  };
}

function sloOf(chosen, number) {
  if (chosen === "own") return { ttft_ms: number("ttft_ms"), tpot_ms: number("tpot_ms") };
  return chosen ? chosen.slice("class ".length) : null;
}

function speculationOf(drafter, depth) {
  return drafter === "off" ? "off" : { drafter: drafter || null, max_depth: depth };
}

/** One turn: `view` shows the answer, `answerOf` gets it and gives its text. */
async function take(text, view, answerOf) {
  if (running || !text) return;
  const typed = prompted() === text;
  if (typed) byId("prompt").value = "";
  const said = el("p", { class: "said" }, text);
  const turn = el("article", { class: "turn" }, said, view.element);
  byId("welcome").hidden = true;
  byId("turns").append(turn);
  if (said.scrollHeight > said.clientHeight) said.tabIndex = 0; // so that keys scroll it
  turn.scrollIntoView({ block: "start" });
  follow();
  running = new AbortController();
  busy(true);
  try {
    if (!model) await strip.poll(); // which says its name
    remember(text, await answerOf(bodyOf(text), running.signal));
  } catch (error) {
    const stopped = running.signal.aborted;
    if (!stopped && !(error instanceof Problem)) throw error;
    if (stopped && view.text) remember(text, view.text);
    if (!stopped && typed && !prompted()) byId("prompt").value = text;
    turn.append(stopped ? el("p", { class: "facts" }, "Stopped.") : problemOf(error, turn, text, view));
  } finally {
    running = null;
    busy(false);
    strip.poll();
  }
}

function remember(text, answer) {
  messages.push({ role: "user", content: text }, { role: "assistant", content: answer });
}

function problemOf(problem, turn, text, view) {
  if (problem.kind !== "refused") disconnected(problem);
  const again = () => {
    turn.remove();
    if (view instanceof Race) race(text);
    else send(text);
  };
  const notice = el(
    "div", { class: "problem", role: "alert" },
    el("p", {}, problem.message), el("button", { type: "button", click: again }, "Try again"),
  );
  if (problem.kind === "key") byId("key").focus();
  return notice;
}

function send(text) {
  const answer = new Answer(showRound);
  return take(text, answer, async (body, signal) => {
    answer.showWait();
    try {
      for await (const choice of chat(body, key(), signal)) answer.add(choice);
    } finally {
      answer.close();
    }
    ended(answer);
    return answer.text;
  });
}

/** The strip shows its replica, and the other column its best round, unless the reader is elsewhere. */
function ended(answer) {
  strip.replica = answer.statistics?.replica ?? strip.replica;
  if (WIDE.matches && followed && answer.tokens.length && !answer.hasChosen) answer.selectBest();
}

function race(text) {
  const view = new Race(showRound);
  return take(text, view, async (body, signal) => {
    if (body.speculation === "off") body.speculation = null;
    const answer = await view.run(body, key(), signal);
    ended(answer);
    return answer.text;
  });
}

function busy(is) {
  byId("send").hidden = byId("race").hidden = is;
  byId("stop").hidden = !is;
  byId("new").hidden = is || !byId("turns").childElementCount;
  if (is) byId("stop").focus({ preventScroll: true });
  else if (document.activeElement === document.body && !TOUCH.matches) {
    byId("prompt").focus({ preventScroll: true });
  }
}

const prompted = () => byId("prompt").value.trim();

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  send(prompted());
});
byId("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send(prompted());
  }
});
byId("race").addEventListener("click", () => race(prompted() || EXAMPLES.at(-1)));
byId("stop").addEventListener("click", () => running?.abort());
addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
byId("new").addEventListener("click", () => {
  messages.length = 0;
  byId("turns").replaceChildren();
  byId("welcome").hidden = false;
  byId("new").hidden = true;
  byId("round").classList.remove("filled");
  byId("round").replaceChildren(...hint);
  byId("prompt").focus();
});
byId("key-field").addEventListener("submit", (event) => event.preventDefault());
byId("key").addEventListener("change", () => {
  byId("key").removeAttribute("aria-invalid");
  strip.poll();
});
byId("slo").addEventListener("change", () => {
  for (const field of document.querySelectorAll(".own-slo")) field.hidden = byId("slo").value !== "own";
});
byId("examples").append(...EXAMPLES.map((text) => el(
  "li", {}, el("button", { type: "button", click: () => send(text) }, text),
)));
const hint = [...byId("round").childNodes]; // before any token was chosen
const pane = byId("conversation");
let followed = true; // the reader has not scrolled back
let scrolledTo = 0;
function follow() {
  followed = true;
  scrolledTo = pane.scrollTop;
}
pane.addEventListener("scroll", () => {
  // Not at the end is no sign of the reader: text may have come since the page itself scrolled.
  const back = pane.scrollTop < scrolledTo;
  const atEnd = pane.scrollHeight - pane.scrollTop - pane.clientHeight < 60;
  followed = atEnd || (followed && !back);
  scrolledTo = pane.scrollTop;
});
const resized = new ResizeObserver(() => {
  if (followed && byId("turns").childElementCount) pane.scrollTop = pane.scrollHeight;
});
resized.observe(byId("turns"));
resized.observe(pane);
byId("prompt").focus();
strip.poll();
