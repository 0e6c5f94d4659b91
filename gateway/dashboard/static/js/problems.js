// What is wrong, in words, each with the view where one sees more of it.

import { fill, h } from "./dom.js";

const WORDS = { error: "Error", warning: "Warning", info: "Note" };

/** A list that is drawn again only when something else is wrong. */
export function problemList() {
  const place = h("div");
  let shown = null;
  const show = (problems) => {
    const now = JSON.stringify(problems);
    if (now === shown) return;
    shown = now;
    const isWrong = problems.some(({ severity }) => severity !== "info");
    fill(place, isWrong ? null : h("p", "Nothing is wrong."), problems.length ? h("ul.notes", problems.map(note)) : null);
  };
  return { element: place, show };
}

function note({ severity, code, text, view }, index) {
  const link = view ? h("a", { href: view, id: `problem-${code}-${index}` }, "See more", h("span.unseen", ` about: ${text}`)) : null;
  return h(`li.note.${severity}`, h("strong", WORDS[severity] ?? severity), h("span", text), link);
}
