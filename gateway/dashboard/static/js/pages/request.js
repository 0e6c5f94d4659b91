import { h } from "../dom.js";

export const title = ([name]) => `Request ${name}`;

export function open(root, { params }) {
  root.append(h("h1", title(params)));
}
