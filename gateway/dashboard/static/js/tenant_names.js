// Tenants have ids in the log and names for people.

import { get } from "./api.js";

const MOST = 1000;

/** Names by id, as many as one page holds; an id stands for itself where the list cannot be had. */
export async function tenantNames({ signal } = {}) {
  try {
    const { data } = await get("tenants", { query: { limit: MOST }, signal });
    return new Map(data.map(({ id, name }) => [id, name]));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    return new Map();
  }
}
