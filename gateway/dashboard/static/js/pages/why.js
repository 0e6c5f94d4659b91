import { h } from "../dom.js";

export const title = "Why not higher";

export function open(root) {
  root.append(h("h1", title));
}
