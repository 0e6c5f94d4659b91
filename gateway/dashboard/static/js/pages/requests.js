import { h } from "../dom.js";

export const title = "Requests";

export function open(root) {
  root.append(h("h1", title));
}
