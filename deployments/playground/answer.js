// An answer, token by token in the colours of the drafters, and its legend.

import { TARGET, WIDE, colourOf, duration, el, plural, swatch } from "./page.js";

const STEPS = { ArrowRight: 1, ArrowLeft: -1 };
const ROUNDS = { ArrowDown: 1, ArrowUp: -1 };

const count = (counts, name, more) => counts.set(name, (counts.get(name) ?? 0) + more);

export class Answer {
  /** `onSelect` gets the token that was chosen, its round, and who wrote it. `head` stays in view
   * with the legend. */
  constructor(onSelect, head = null) {
    this.text = "";
    this.tokens = [];
    this.statistics = null;
    this._onSelect = onSelect;
    this._selected = -1;
    this._waiting = null;
    this._counts = new Map(); // tokens by who wrote them
    this._also = new Map(); // and tokens of others that a drafter has proposed as well
    this._share = el("div", { class: "share", "aria-hidden": "true" });
    this._legend = el("ul", { class: "legend", "aria-label": "Tokens by who wrote them" });
    this._facts = el("p", { class: "facts" });
    this._words = el("div", {
      class: "text",
      role: "group",
      tabindex: "0",
      "aria-label": "Answer. The arrow keys go from token to token, and from round to round.",
      "aria-busy": "true",
      // Not pointerover: text that grows under a pointer at rest would choose tokens by itself. And
      // where the round lies over the page, it is asked for by a click.
      pointermove: (event) => WIDE.matches && !this._isChosen(event.target) && this._pointed(event),
      click: (event) => this._pointed(event),
      focus: () => this._selected < 0 && this.select(0),
      keydown: (event) => this._pressed(event),
    });
    const tally = el("div", { class: "tally" }, head, this._share, this._legend);
    this.element = el("div", { class: "answer" }, tally, this._words, this._facts);
  }

  /** Says how long the first token has been waited for. */
  showWait() {
    const begun = performance.now();
    const say = () => {
      const seconds = Math.round((performance.now() - begun) / 1000);
      this._facts.textContent = `waiting for the first token, ${seconds} s`;
    };
    this._waiting = setInterval(say, 1000);
  }

  _endWait() {
    if (!this._waiting) return;
    clearInterval(this._waiting);
    this._waiting = null;
    this._facts.textContent = "";
  }

  /** One event's choice: the tokens of one round. */
  add(choice) {
    this.text += choice.delta?.content ?? "";
    const { trace, ...statistics } = choice.spindle ?? {};
    if (trace) this._addRound(trace);
    if (choice.finish_reason) this._end(choice.finish_reason, statistics);
  }

  _addRound(round) {
    this._endWait();
    const spans = round.tokens.map((token) => {
      const [drafter, ...others] = token.node === null ? [TARGET] : round.nodes[token.node].drafters;
      count(this._counts, drafter, 1);
      for (const other of others) {
        count(this._counts, other, 0);
        count(this._also, other, 1);
      }
      const span = el("span", { class: `token ${colourOf(drafter)}` }, token.text);
      this.tokens.push({ token, round, drafter, span });
      return span;
    });
    this._words.append(...spans);
    this._showCounts();
  }

  _showCounts() {
    const counts = [...this._counts].sort((one, other) => other[1] - one[1]);
    this._legend.replaceChildren(...counts.map(([drafter, own]) => el(
      "li",
      { pointerenter: () => this._stress(drafter), pointerleave: () => this._stress(null) },
      swatch(drafter), `${drafter === TARGET ? "the target itself" : drafter} `, el("b", {}, String(own)),
      this._also.has(drafter) ? `, also proposed ${this._also.get(drafter)}` : null,
    )));
    this._share.replaceChildren(...counts.filter(([, own]) => own).map(([drafter, own]) => {
      const part = el("i", { class: colourOf(drafter) });
      part.style.flexGrow = own;
      return part;
    }));
  }

  _stress(drafter) {
    this._words.classList.toggle("stressed", drafter !== null);
    for (const token of this.tokens) token.span.classList.toggle("stress", token.drafter === drafter);
  }

  _end(reason, statistics) {
    this.close();
    this.statistics = statistics;
    const { ttft_s: ttft, tpot_s: tpot, rounds, drafted, decision } = statistics;
    const count = this.tokens.length;
    const facts = [
      plural(count, "token"),
      rounds ? `${(count / rounds).toFixed(1)} per round of the target` : null,
      tpot ? `${Math.round(1 / tpot)} tokens per second` : null,
      `first after ${duration(ttft)}`,
      reason === "length" ? "cut off at max tokens (Settings)" : null,
      drafted ? null : decision, // why nothing has a colour
    ];
    this._facts.textContent = facts.filter(Boolean).join(" · ");
  }

  /** Nothing follows. */
  close() {
    this._endWait();
    this._words.setAttribute("aria-busy", "false");
  }

  select(index) {
    const chosen = this.tokens[Math.max(0, Math.min(index, this.tokens.length - 1))];
    if (!chosen) return;
    this._selected = this.tokens.indexOf(chosen);
    for (const marked of document.querySelectorAll(".token.chosen, .token.same-round")) {
      marked.classList.remove("chosen", "same-round");
    }
    for (const { span, round } of this.tokens) {
      if (round === chosen.round) span.classList.add("same-round");
    }
    chosen.span.classList.add("chosen");
    this._onSelect(chosen);
  }

  /** The round with the most accepted drafts, and of several the one with the most drafts. */
  selectBest() {
    const rank = ({ round }) => 1e6 * round.accepted + round.verified;
    const best = this.tokens.reduce((one, other) => (rank(other) > rank(one) ? other : one));
    this.select(this.tokens.indexOf(best));
  }

  /** Whether the reader has chosen a token of it. */
  get hasChosen() {
    return this._selected >= 0;
  }

  _isChosen(span) {
    return span === this.tokens[this._selected]?.span && span.classList.contains("chosen");
  }

  _pointed(event) {
    const index = this.tokens.findIndex(({ span }) => span === event.target);
    if (index >= 0) this.select(index);
  }

  _pressed(event) {
    let next = null;
    if (event.key in STEPS) next = this._selected + STEPS[event.key];
    else if (event.key in ROUNDS) next = this._firstOfRound(ROUNDS[event.key]);
    else if (event.key === "Home") next = 0;
    else if (event.key === "End") next = this.tokens.length - 1;
    if (next === null || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    this.select(next);
    this.tokens[this._selected]?.span.scrollIntoView({ block: "nearest" });
  }

  /** The first token of the next round, or of the one before. */
  _firstOfRound(direction) {
    const { round } = this.tokens[this._selected] ?? {};
    const rounds = [...new Set(this.tokens.map((token) => token.round))];
    const wanted = rounds[rounds.indexOf(round) + direction] ?? round;
    return this.tokens.findIndex((token) => token.round === wanted);
  }
}
