// The draft tree of a round: one level below the other, with the accepted path at the left edge.

import { TARGET, colourOf, percent, spelled, svg } from "./page.js";

const LEVEL = 42;
const BOX = 24;
const GAP = 14;
const ANCHOR = 15; // where edges leave and reach a box, from its left
const CHARACTER = 7.3;
const LABEL = 40;
const LONGEST = 18;

export function drawTree(round) {
  const nodes = placed(round);
  const lefts = leftsOf(nodes);
  const width = lefts.at(-1);
  const height = LEVEL * (Math.max(...nodes.map((node) => node.depth)) + 1);
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, class: "tree", role: "img",
    "aria-label": described(round),
  });
  const spots = new Map(nodes.map((node) => [node, { x: lefts[node.column], y: node.depth * LEVEL + 2 }]));
  for (const node of nodes) if (node.above) drawing.append(edge(node, spots));
  for (const node of nodes) drawing.append(box(node, spots.get(node)));
  return drawing;
}

/** The last token before the round, its drafts, and the target's own token, with their columns. */
function placed(round) {
  const root = { text: "•", depth: 0, kind: "root", below: [] };
  const drafts = round.nodes.map((node) => ({
    text: spelled(node.text), drafter: node.drafters[0], confidence: node.confidence,
    kind: node.accepted ? "accepted" : "fallen", below: [],
  }));
  round.nodes.forEach((node, place) => hang(drafts[place], node.parent === null ? root : drafts[node.parent]));
  const own = round.tokens.find((token) => token.node === null);
  const end = drafts.filter((draft) => draft.kind === "accepted").at(-1) ?? root;
  const all = [root, ...drafts];
  if (own) {
    const token = { text: spelled(own.text), drafter: TARGET, kind: "own", below: [] };
    hang(token, end, true);
    all.push(token);
  }
  let column = 0;
  const settle = (node) => {
    node.below.forEach(settle);
    // Straight above the first below it.
    node.column = node.below.length ? node.below[0].column : column++;
  };
  settle(root);
  return all;
}

function hang(node, above, first = false) {
  node.above = above;
  node.depth = above.depth + 1;
  // The accepted path and the target's token come first.
  if (first || node.kind === "accepted") above.below.unshift(node);
  else above.below.push(node);
}

const shortened = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);
const widthOf = (node) => (
  node.kind === "root" ? 2 * ANCHOR : Math.max(2 * ANCHOR, shortened(node.text).length * CHARACTER + 14)
);

/** The left edge of each column, and at the end the right edge of the last one. */
function leftsOf(nodes) {
  const widths = [];
  for (const node of nodes) {
    widths[node.column] = Math.max(widths[node.column] ?? 0, widthOf(node) + LABEL);
  }
  return widths.reduce((lefts, width) => [...lefts, lefts.at(-1) + width + GAP], [2]);
}

function edge(node, spots) {
  const from = spots.get(node.above);
  const to = spots.get(node);
  const [x1, x2] = [from.x + ANCHOR, to.x + ANCHOR];
  const [y1, y2] = [from.y + (node.above.kind === "root" ? BOX / 2 : BOX), to.y];
  const middle = y2 - (LEVEL - BOX) / 2;
  const path = x1 === x2 ? `M${x1} ${y1}V${y2}` : `M${x1} ${y1}V${middle}H${x2}V${y2}`;
  return svg("path", { d: path, class: `edge ${node.kind} ${colourOf(node.drafter)}` });
}

function box(node, { x, y }) {
  if (node.kind === "root") {
    return svg("circle", { cx: x + ANCHOR, cy: y + BOX / 2, r: 4, class: "root" });
  }
  const width = widthOf(node);
  const beside = node.kind === "own" ? "target" : percent(node.confidence);
  return svg(
    "g", { class: `node ${node.kind} ${colourOf(node.drafter)}` },
    svg("title", {}, node.kind === "own" ? "the target’s own token" : `${node.drafter}: ${node.text}`),
    svg("rect", { x, y, width, height: BOX, rx: 6 }),
    svg("text", { x: x + width / 2, y: y + 16, class: "word" }, shortened(node.text)),
    svg("text", { x: x + width + 5, y: y + 16, class: "confidence" }, beside),
  );
}

function described(round) {
  const path = round.nodes.filter((node) => node.accepted).map((node) => node.text).join("");
  const accepted = path ? `The target accepted “${path}”.` : "The target accepted none.";
  return `Draft tree of round ${round.round} with ${round.nodes.length} drafts. ${accepted}`;
}
