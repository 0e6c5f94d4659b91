import { h } from "../dom.js";

export const title = "Overview";

export function open(root) {
  root.append(h("h1", title));
}
