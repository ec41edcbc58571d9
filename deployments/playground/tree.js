// The draft tree of a round: what was drafted from left to right, with the accepted path.

import { TARGET, colourOf, percent, spelled, svg } from "./page.js";

const ROW = 44;
const BOX = 24;
const GAP = 30;
const CHARACTER = 7.3;
const LONGEST = 14;

export function drawTree(round) {
  const nodes = placed(round);
  const columns = columnsOf(nodes);
  const rows = Math.max(...nodes.map((node) => node.row)) + 1;
  const width = columns.at(-1).right + 2;
  const height = rows * ROW;
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, width, height, class: "tree", role: "img",
    "aria-label": described(round),
  });
  for (const node of nodes) if (node.above) drawing.append(edge(node, columns));
  for (const node of nodes) drawing.append(box(node, columns));
  return drawing;
}

/** The last token before the round, its drafts, and the target's own token, with their rows. */
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
  let row = 0;
  const settle = (node) => {
    node.below.forEach(settle);
    // On one line with the first below it, so that the accepted path runs straight.
    node.row = node.below.length ? node.below[0].row : row++;
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
const widthOf = (node) => (node.kind === "root" ? 12 : Math.max(30, shortened(node.text).length * CHARACTER + 14));

function columnsOf(nodes) {
  const widths = [];
  for (const node of nodes) widths[node.depth] = Math.max(widths[node.depth] ?? 0, widthOf(node));
  let left = 1;
  return widths.map((width) => {
    const column = { left, right: left + width };
    left += width + GAP;
    return column;
  });
}

function edge(node, columns) {
  const fromX = columns[node.above.depth].left + widthOf(node.above);
  const toX = columns[node.depth].left;
  const fromY = node.above.row * ROW + BOX / 2 + 1;
  const toY = node.row * ROW + BOX / 2 + 1;
  const middle = toX - GAP / 2;
  const path = `M${fromX} ${fromY}H${middle - 8}C${middle} ${fromY} ${middle} ${toY} ${middle + 8} ${toY}H${toX}`;
  return svg("path", { d: path, class: `edge ${node.kind} ${colourOf(node.drafter)}` });
}

function box(node, columns) {
  const x = columns[node.depth].left;
  const y = node.row * ROW + 1;
  if (node.kind === "root") return svg("circle", { cx: x + 6, cy: y + BOX / 2, r: 4, class: "root" });
  const width = widthOf(node);
  const middle = x + width / 2;
  const below = node.kind === "own" ? "target" : percent(node.confidence);
  return svg(
    "g", { class: `node ${node.kind} ${colourOf(node.drafter)}` },
    svg("title", {}, node.kind === "own" ? "the target’s own token" : `${node.drafter}: ${node.text}`),
    svg("rect", { x, y, width, height: BOX, rx: 6 }),
    svg("text", { x: middle, y: y + 16, class: "word" }, shortened(node.text)),
    svg("text", { x: middle, y: y + BOX + 12, class: "confidence" }, below),
  );
}

function described(round) {
  const path = round.nodes.filter((node) => node.accepted).map((node) => node.text).join("");
  const accepted = path ? `The target accepted “${path}”.` : "The target accepted none.";
  return `Draft tree of round ${round.round} with ${round.nodes.length} drafts. ${accepted}`;
}
