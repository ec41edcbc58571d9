// The same request once with and once without speculation. One after the other, so that neither
// takes time from the other; then both can be replayed side by side.

import { Answer } from "./answer.js";
import { chat } from "./api.js";
import { el } from "./page.js";

const TICK_MS = 50;

class Runner {
  constructor(title, onSelect) {
    this.title = title;
    this.events = [];
    this.seconds = null;
    this._onSelect = onSelect;
    this._clock = el("span", { class: "clock", role: "timer", "aria-label": `Clock, ${title}` }, "–");
    this._head = el("div", { class: "head" }, el("h3", {}, title), this._clock);
    this.element = el("section", { class: "runner", "aria-label": title });
    this._fresh();
  }

  _fresh() {
    this.answer = new Answer(this._onSelect, this._head);
    this.element.replaceChildren(this.answer.element);
  }

  async run(body, key, signal) {
    const begun = this._start();
    try {
      for await (const choice of chat(body, key, signal)) {
        this.seconds = (performance.now() - begun) / 1000;
        this.events.push([this.seconds, choice]);
        this.answer.add(choice);
      }
    } finally {
      this._stop(this.seconds);
      this.answer.close();
    }
  }

  /** Shows what has arrived again, as it arrived. */
  async replay() {
    this._fresh();
    const begun = this._start();
    for (const [seconds, choice] of this.events) {
      const wait = 1000 * seconds - (performance.now() - begun);
      if (wait > 0) await new Promise((resolve) => setTimeout(resolve, wait));
      this.answer.add(choice);
    }
    this._stop(this.seconds);
  }

  _start() {
    const begun = performance.now();
    const show = () => this._show((performance.now() - begun) / 1000);
    this._timer = setInterval(show, TICK_MS);
    return begun;
  }

  _stop(seconds) {
    clearInterval(this._timer);
    if (seconds !== null) this._show(seconds);
  }

  _show(seconds) {
    this._clock.textContent = `${seconds.toFixed(2)} s`;
  }
}

export class Race {
  constructor(onSelect) {
    this._runners = [new Runner("With speculation", onSelect), new Runner("Without", onSelect)];
    this._verdict = el("p", { class: "verdict", role: "status" }, "First with speculation, then without, so that neither takes time from the other.");
    this._again = el("button", { type: "button", hidden: true, click: () => this._replay() }, "Replay side by side");
    this.element = el(
      "div", { class: "race" },
      el("div", { class: "runners" }, ...this._runners.map((runner) => runner.element)),
      el("div", { class: "result" }, this._verdict, this._again),
    );
  }

  /** The answer with speculation. */
  async run(body, key, signal) {
    const [drafting, plain] = this._runners;
    await drafting.run(body, key, signal);
    // Its seed was drawn if none was given.
    const { seed } = drafting.answer.statistics;
    await plain.run({ ...body, seed, speculation: "off" }, key, signal);
    this._verdict.replaceChildren(...verdict(drafting, plain));
    this._again.hidden = false;
    return drafting.answer;
  }

  async _replay() {
    this._again.disabled = true;
    await Promise.all(this._runners.map((runner) => runner.replay()));
    this._again.disabled = false;
    if (document.activeElement === document.body) this._again.focus({ preventScroll: true }); // as before
  }
}

function verdict(drafting, plain) {
  const ratio = plain.seconds / drafting.seconds;
  const same = drafting.answer.text === plain.answer.text;
  const text = same
    ? " with speculation, and the same text."
    : " with speculation. The texts differ: a target in bfloat16 rounds differently in other batches.";
  return [el("b", {}, `${ratio.toFixed(2)} × the speed`), text];
}
