import { h } from "../dom.js";

export const title = "Tenants";

export function open(root) {
  root.append(h("h1", title));
}
