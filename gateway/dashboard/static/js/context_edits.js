// What the context policy left out of one request, with the tokens before and after.

import { editMeaning, editWord } from "./context_words.js";
import { h } from "./dom.js";
import { count, figure } from "./format.js";
import { table } from "./table.js";

const PATH = "context_management";

/** @param {object} context  as GET /requests/{id} tells it; null: the policy was off */
export function contextEdits(context) {
  if (!context) return null;
  const { applied_edits: edits, original_input_tokens: before, input_tokens: after, mode } = context;
  const isAudit = mode === "audit";
  const tokens = [figure(`${PATH}.original_input_tokens`, before, count), " tokens"];
  const heading = h("h3", isAudit ? "What would have been left out" : "What was left out to make it fit");
  if (!edits.length) return [heading, h("p", "Nothing: with ", tokens, " it fits.")];
  const sent = isAudit ? " would have been sent." : " were sent. The same is left out of the next requests of the chat, until it is cut again.";
  return [
    heading,
    h("p", isAudit ? "Of " : "Of about ", tokens, isAudit ? " about " : " ", figure(`${PATH}.input_tokens`, after, count), sent),
    table({ caption: "Edits of the context policy", columns: COLUMNS, rows: edits.map((edit, index) => ({ ...edit, index })) }),
  ];
}

const COLUMNS = [
  { title: "What", cell: (edit) => [editWord(edit.type), h("span.hint.below", editMeaning(edit))] },
  { title: "How many", isNumber: true, cell: (edit) => figure(`${PATH}.applied_edits.${edit.index}.count`, edit.count, count) },
  { title: "Tokens", isNumber: true, hint: "of the prompt: how many fewer, or more, by estimate", cell: (edit) => figure(`${PATH}.applied_edits.${edit.index}.cleared_input_tokens`, edit.cleared_input_tokens, fewer) },
];

/** 5,120 fewer, 300 more */
const fewer = (tokens) => (tokens < 0 ? `${count(-tokens)} more` : `${count(tokens)} fewer`);
