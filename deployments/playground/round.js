// The round that made a token: numbers, and its draft tree.

import { TARGET, byId, duration, el, percent, plural, spelled, swatch } from "./page.js";
import { drawTree } from "./tree.js";

export function showRound({ token, round, drafter }) {
  const rejected = round.verified - round.accepted;
  const node = token.node === null ? null : round.nodes[token.node];
  const others = node?.drafters.slice(1) ?? [];
  const again = round.attempt > 1 ? `, attempt ${round.attempt}` : "";
  const panel = byId("round");
  panel.classList.add("filled");
  panel.replaceChildren(
    // Where the panel lies over the page.
    el("button", { type: "button", class: "close", click: () => panel.classList.remove("filled") }, "Close"),
    el("h2", {}, el("code", { class: "chosen-token" }, spelled(token.text)), ` in round ${round.round}${again}`),
    el(
      "dl", { "aria-live": "polite" },
      ...row("Written by", swatch(drafter), drafter === TARGET ? "the target itself" : drafter),
      ...(others.length ? row("Also proposed by", others.join(", ")) : []),
      ...(node ? row("Confidence", percent(node.confidence)) : []),
      ...row("Depth", node ? `${token.node + 1} of ${depthOf(round)}` : "after the drafts"),
      ...row("Drafts", draftsOf(round)),
      ...row("Rejected", rejected ? plural(rejected, "draft") : "none"),
      ...row("Time", `${duration(round.draft_s)} drafting, ${duration(round.verify_s)} verifying`),
    ),
    treeOf(round),
  );
}

const row = (name, ...values) => [el("dt", {}, name), el("dd", {}, ...values)];

function depthOf(round) {
  const depths = [];
  round.nodes.forEach((node) => depths.push(node.parent === null ? 1 : depths[node.parent] + 1));
  return Math.max(...depths);
}

function draftsOf(round) {
  if (!round.drafted) return "none in this round";
  return `${round.drafted} proposed, ${round.verified} verified, ${round.accepted} accepted`;
}

function treeOf(round) {
  const left = round.verified - round.nodes.length;
  return el(
    "figure", {},
    el("div", { class: "scrolls", tabindex: "0", role: "group", "aria-label": "Draft tree" }, drawTree(round)),
    el(
      "figcaption", {},
      "Filled: accepted. Dashed: rejected. Beside each draft, its confidence.",
      left > 0 ? ` ${plural(left, "more draft")} not drawn.` : null,
    ),
  );
}
