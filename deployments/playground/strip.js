// The strip at the bottom: numbers of the replica's last seconds, asked for once a second while it
// is open and the page is visible.

import { Problem, live } from "./api.js";
import { byId, colourOf, el, percent, swatch } from "./page.js";

const SHOWN_S = 8;
const PERIOD_MS = 1000;
const RETRY_MS = 2000;
const ROW = 20;

export class Strip {
  /** `onNumbers` gets every answer, `onProblem` what goes wrong. */
  constructor(key, onNumbers, onProblem) {
    this.replica = null; // the one that has served the last answer
    this._key = key;
    this._onNumbers = onNumbers;
    this._onProblem = onProblem;
    this._spans = new Map();
    this._shownReplica = null;
    this._timer = null;
    byId("strip").addEventListener("toggle", () => this.poll());
    document.addEventListener("visibilitychange", () => this.poll());
    addEventListener("resize", () => this._last && this._draw(this._last));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this._last && this._draw(this._last));
  }

  /** Asks now, and then again and again while there is something to show. */
  async poll() {
    clearTimeout(this._timer);
    const round = (this._round = {});
    let wait = PERIOD_MS;
    try {
      const numbers = await live(SHOWN_S, this._key());
      if (this._round !== round) return;
      this._onNumbers(numbers);
      const replicas = numbers.replicas;
      const shown = replicas.find((one) => one.replica === this.replica) ?? replicas[0];
      if (shown) this._show(shown, replicas.length);
    } catch (error) {
      if (!(error instanceof Problem)) throw error;
      if (this._round !== round) return;
      this._onProblem(error);
      if (error.kind === "key") return; // until one is entered
      wait = RETRY_MS;
    }
    const connected = wait === PERIOD_MS;
    if (document.hidden || (connected && !byId("strip").open)) return;
    this._timer = setTimeout(() => this.poll(), wait);
  }

  _show(numbers, replicas) {
    if (numbers.replica !== this._shownReplica) this._spans.clear();
    this._shownReplica = numbers.replica;
    this._last = numbers;
    for (const host of numbers.hosts) this._remember(host, numbers.now_s);
    byId("watched").textContent = `the last ${SHOWN_S} seconds of ${replicas > 1 ? `replica ${numbers.replica}, one of ${replicas}` : "the replica"}`;
    byId("hosts").replaceChildren(...numbers.hosts.map((host) => el(
      "li", {}, host.drafter ? swatch(host.drafter) : el("i", { class: "swatch verifier", "aria-hidden": "true" }),
      host.name, el("span", { class: "busy" }, percent(this._busy(host.name, numbers.now_s))),
    )));
    byId("numbers").replaceChildren(...figures(numbers));
    this._draw(numbers);
  }

  _remember(host, now) {
    const known = (this._spans.get(host.name) ?? []).filter(([, end]) => end > now - SHOWN_S);
    const latest = known.at(-1)?.[1] ?? -Infinity;
    this._spans.set(host.name, [...known, ...host.busy.filter(([start]) => start >= latest - 1e-4)]);
  }

  _busy(host, now) {
    const begin = now - SHOWN_S;
    const spans = this._spans.get(host);
    return Math.min(1, spans.reduce((sum, [start, end]) => sum + end - Math.max(start, begin), 0) / SHOWN_S);
  }

  _draw({ hosts, now_s: now }) {
    const canvas = byId("gantt");
    const width = canvas.clientWidth;
    const height = ROW * hosts.length;
    const scale = devicePixelRatio || 1;
    canvas.width = Math.max(1, Math.round(width * scale));
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const at = (seconds) => width * (1 - (now - seconds) / SHOWN_S);
    const style = getComputedStyle(canvas);
    context.fillStyle = style.getPropertyValue("--line");
    for (let second = 1; second < SHOWN_S; second++) context.fillRect(at(now - second), 0, 1, height);
    hosts.forEach((host, row) => {
      context.fillStyle = colour(host, style);
      for (const [start, end] of this._spans.get(host.name)) {
        const left = Math.max(0, at(start));
        context.fillRect(left, row * ROW + 4, Math.max(1, at(end) - left), ROW - 8);
      }
    });
  }
}

function colour(host, style) {
  if (host.drafter === null) return style.getPropertyValue("--ink");
  return style.getPropertyValue(`--c${colourOf(host.drafter).slice(3)}`);
}

function figures(numbers) {
  const drafters = Object.entries(numbers.drafted).map(([drafter, drafted]) => {
    const accepted = numbers.accepted[drafter] ?? 0;
    const pace = Math.round(accepted / numbers.seconds);
    return figure(`from ${drafter}`, `${pace}`, `tokens/s, ${percent(accepted / drafted)} accepted`);
  });
  const slo = numbers.attainment;
  return [
    figure("goodput", `${Math.round(numbers.goodput)}`, "tokens/s"),
    figure("requests", `${numbers.running} + ${numbers.waiting}`, "running, waiting"),
    figure("SLO met", slo === null ? "–" : percent(slo), slo === null ? "none was asked for" : "of the last requests"),
    ...drafters,
    ...(numbers.learning ? learning(numbers.learning) : []),
  ];
}

/** Tokens per forward of the drafter alone, judged before it learned from a request. */
function learning({ drafter, version, tokens, share, served, candidate }) {
  const pace = (judged) => (judged > 0 ? judged.toFixed(2) : "–");
  return [
    figure(`${drafter}, served`, pace(served), `tokens/forward, version ${version}`),
    figure(`${drafter}, learning`, pace(candidate), `tokens/forward, ${tokens} learned, ${percent(share)} CPU`),
  ];
}

const figure = (name, value, unit) => el("div", {}, el("dt", {}, name), el("dd", {}, el("b", {}, value), ` ${unit}`));
