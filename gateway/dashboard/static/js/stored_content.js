// Body and answer of a request, where the operator has them stored. They are laid out when they are unfolded.

import { fill, h } from "./dom.js";

/** @param {object} request  as GET /requests/{id} tells it */
export function storedContent({ request_body: body, answer_text: answer }) {
  if (body === undefined && answer === undefined) {
    return h("p.hint", "Neither body nor answer is stored: that takes --store-content.");
  }
  return [body === undefined ? null : folded("Body as it came", () => laidOut(body)), answer === undefined ? null : folded("Answer", () => answer)];
}

function folded(title, text) {
  const place = h("div.unfolded");
  const ontoggle = (event) => {
    if (event.target.open && !place.firstChild) fill(place, h("pre", { tabindex: "0", "aria-label": title }, text()));
  };
  return h("details.content", { ontoggle }, h("summary", title), place);
}

function laidOut(body) {
  try {
    return JSON.stringify(JSON.parse(body), null, 2);
  } catch {
    return body;
  }
}
