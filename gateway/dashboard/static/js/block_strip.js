// The block table of a request: one cell a block, in the order of its tokens. It is one stop for the keyboard; arrows go through it.

import { fill, h } from "./dom.js";
import { blockWords, groupsOf, tokenWords } from "./block_words.js";
import { count, figure } from "./format.js";
import { kindOf, reasonWord } from "./reasons.js";
import { table } from "./table.js";

const KINDS = [
  ["hit", "reused in place"],
  ["copied", "copied"],
  ["computed", "computed"],
  ["answer", "answer"],
];
const MARKS = [
  ["is-shared", "shared: used by several, or pinned"],
  ["is-pinned", "pinned"],
];

export class BlockStrip {
  #blocks = [];
  #answer = null;
  #active = 0;
  #summary = h("p");
  #legend = h("ul.legend");
  #cells = h("div.strip", { id: "blocks", role: "listbox", tabindex: "0", "aria-label": "Blocks in the order of their tokens", "aria-describedby": "block-detail" });
  #detail = h("p.block-detail", { id: "block-detail" }, "Point at a block, or go through them with the arrow keys.");
  #table = h("details.numbers", h("summary", "Show as a table"), h("div.unfolded"));
  element = h("div.blocks", this.#summary, this.#legend, this.#cells, this.#detail, this.#table);

  constructor() {
    this.#cells.addEventListener("pointerover", (event) => this.#point(event.target));
    this.#cells.addEventListener("click", (event) => this.#point(event.target, { isChoice: true }));
    this.#cells.addEventListener("focus", () => this.#choose(this.#active));
    this.#cells.addEventListener("keydown", (event) => this.#go(event));
    this.#table.addEventListener("toggle", () => this.#unfold());
  }

  /** Show an answer of GET /requests/{id}/blocks; cells that did not change are left alone. */
  update(answer) {
    const before = this.#blocks;
    this.#answer = answer;
    this.#blocks = answer.blocks;
    while (this.#cells.childElementCount > this.#blocks.length) this.#cells.lastElementChild.remove();
    const added = this.#blocks.slice(this.#cells.childElementCount).map((_, index) => h("span", { role: "option", id: `block-${before.length + index}` }));
    this.#cells.append(...added);
    this.#blocks.forEach((block, index) => {
      if (before[index] && looksLike(before[index], block)) return;
      const cell = this.#cells.children[index];
      cell.className = classOf(block);
      cell.setAttribute("aria-label", `Block ${index}: ${block.reason === null ? "answer" : reasonWord(block.reason)}`);
    });
    this.#cells.hidden = this.#detail.hidden = this.#table.hidden = !this.#blocks.length;
    fill(this.#summary, this.#words());
    fill(this.#legend, this.#legendItems());
    this.#unfold();
    return this.element;
  }

  #words() {
    const { status, num_prompt_tokens: prompt, num_cached_tokens: cached, reasons } = this.#answer;
    const size = Math.max(0, ...this.#blocks.map((block) => block.num_tokens));
    const state = { running: "It runs; the table is as it is now.", waiting: "It waits, and holds no blocks now.", ended: "The table as it was at the end." }[status] ?? status;
    const why = Object.entries(reasons ?? {}).map(([reason, number], index) => [index ? ", " : "", `${reasonWord(reason)} `, figure(`reasons.${reason}`, number, count)]);
    return [
      figure("num_cached_tokens", cached, count), " of ", figure("num_prompt_tokens", prompt, count),
      ` tokens of the prompt came from the cache. Blocks hold up to ${count(size)} tokens. ${state}`,
      why.length ? h("span.reasons", "Blocks of the prompt by reason: ", why, ".") : null,
    ];
  }

  #legendItems() {
    const kinds = KINDS.map(([kind, word]) => [kind, word, this.#blocks.filter((block) => kindOf(block.reason) === kind).length]);
    const marks = MARKS.map(([mark, word]) => [`hit ${mark}`, word, this.#blocks.filter((block) => classOf(block).includes(mark)).length]);
    return [...kinds, ...marks].map(([classes, word, number]) => h("li", h("span", { class: `cell ${classes}`, "aria-hidden": "true" }), `${word} ${count(number)}`));
  }

  #unfold() {
    if (!this.#table.open) return;
    const columns = [
      { title: "Blocks", cell: ({ first, last }) => (first === last ? count(first) : `${count(first)} to ${count(last)}`) },
      { title: "Tokens", cell: ({ start, end }) => tokenWords(start, end) },
      { title: "What became of them", cell: ({ words }) => words },
    ];
    const rows = groupsOf(this.#blocks);
    fill(this.#table.querySelector(".unfolded"), table({ caption: "Blocks; neighbours of one sort are one row", columns, rows }));
  }

  #point(target, { isChoice = false } = {}) {
    const index = [...this.#cells.children].indexOf(target);
    if (index < 0) return;
    if (isChoice) this.#choose(index);
    else this.#tell(index);
  }

  #go(event) {
    const width = this.#perRow();
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: width, ArrowUp: -width, PageDown: 5 * width, PageUp: -5 * width, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    event.preventDefault();
    this.#choose(Math.min(this.#blocks.length - 1, Math.max(0, this.#active + steps[event.key])));
    this.#cells.children[this.#active]?.scrollIntoView({ block: "nearest" });
  }

  #perRow() {
    const cells = [...this.#cells.children];
    const next = cells.findIndex((cell) => cell.offsetTop !== cells[0].offsetTop);
    return next < 0 ? cells.length : next;
  }

  #choose(index) {
    const cells = this.#cells.children;
    cells[this.#active]?.removeAttribute("aria-selected");
    this.#active = index;
    const cell = cells[index];
    if (!cell) return;
    cell.setAttribute("aria-selected", "true");
    cell.setAttribute("aria-label", this.#tell(index));
    this.#cells.setAttribute("aria-activedescendant", cell.id);
  }

  #tell(index) {
    const words = blockWords(this.#blocks, index);
    this.#detail.textContent = words;
    return words;
  }
}

function classOf(block) {
  return ["cell", kindOf(block.reason), block.shared ? "is-shared" : "", block.pinned ? "is-pinned" : ""].filter(Boolean).join(" ");
}

const looksLike = (one, other) => one.reason === other.reason && one.shared === other.shared && one.pinned === other.pinned;
