// What the context policy left out of a request, and its parameters, in words.

/** By kind of edit: what was changed, and how. */
const EDITS = {
  clear_tool_results: ["Old tool results", "each is one line that says what stood there"],
  stub_documents: ["Long documents", "each is one line that says what stood there; passages are given where a question needs them"],
  compress_tool_results: ["Long tool results", "cut to their best passages when they first came"],
  summarize: ["Old messages", "a summary stands in their place"],
  clear_tool_uses_20250919: ["Old uses of tools", "its client asked for it; each result is one line that says what stood there"],
  clear_thinking_20251015: ["Turns with thoughts", "its client asked for it; what the model thought in them is left out"],
  passages: ["Questions with passages", "what is left out was searched for what each of them needs"],
};
const WRITERS = { extractive: "of their own sentences", model: "written by the model" };
const FALLBACKS = { timed_out: "the model did not write one in time", failed: "the model failed to write one" };

/** What an edit changed: "Old tool results". */
export const editWord = (type) => EDITS[type]?.[0] ?? type;

/** How: "a summary stands in their place, of their own sentences: the model did not write one in time". */
export function editMeaning({ type, written_by: writer, fallback }) {
  const by = writer ? `, ${WRITERS[writer] ?? writer}` : "";
  const why = fallback ? `: ${FALLBACKS[fallback] ?? fallback}` : "";
  return `${EDITS[type]?.[1] ?? ""}${by}${why}`;
}

/** Its parameters as they are when nothing is chosen, each with a label and what it means. */
export const PARAMS = {
  high: { preset: 0.85, label: "Cut above", means: "share of the room behind system text and tools above which a chat is cut." },
  low: { preset: 0.5, label: "Cut down to", means: "share that is left. The lower, the rarer are cuts." },
  cut_above: { preset: 0, label: "Never above", means: "tokens: a chat with more is cut in any case. 0: the share alone decides." },
  keep_tool_results: { preset: 3, label: "Tool results kept", means: "the last ones, which are never cleared." },
  clear_at_least: { preset: 512, label: "Clear at least", means: "tokens: tool results are not cleared for less." },
  exclude_tools: { preset: [], label: "Tools left alone", means: "names with commas between: their results are never cleared nor compressed." },
  document_tokens: { preset: 1000, label: "A document from", means: "tokens: a longer text is a document, of which passages are given." },
  passage_share: { preset: 0.2, label: "Passages", means: "share of what is left that passages for a question may take." },
  keep_units: { preset: 6, label: "Turns kept", means: "the last ones, which are summarized only where nothing else is enough." },
  summary: { preset: "extractive", label: "Summary", means: "who writes what stands in the place of old turns.", choices: ["extractive", "model", "off"] },
  summary_share: { preset: 0.1, label: "Length of a summary", means: "share of what is left that it may take." },
  summary_timeout_seconds: { preset: 20, label: "Time for a summary", means: "seconds that the model has for one; then it is made of the turns' own sentences." },
  compress_tool_results_over: { preset: 0, label: "Compress from", means: "tokens: a longer tool result is cut to its best passages when it comes. 0: none is." },
};
