// Single blocks, and runs of blocks of one sort, in words.

import { count } from "./format.js";
import { reasonMeaning, reasonWord } from "./reasons.js";
import { ownersWords } from "./regions.js";

const STATES = { pending: "being computed", private: "its own", ready: null };

/** "Block 12, tokens 384 to 415: Reused, taken from the cache in place; of message 1; used by 2 requests". */
export function blockWords(blocks, index) {
  const block = blocks[index];
  const start = blocks.slice(0, index).reduce((sum, { num_tokens: tokens }) => sum + tokens, 0);
  const number = `Block ${count(index)} (number ${count(block.block_id)} of the pool), ${tokenWords(start, start + block.num_tokens)}`;
  return `${number}: ${fateWords(block)}.`;
}

/** "tokens 32 to 63"; `end` is the one behind. */
export const tokenWords = (start, end) => (end > start ? `tokens ${count(start)} to ${count(end - 1)}` : "no tokens yet");

/** What became of a block, and who uses it. */
function fateWords(block) {
  const fate = block.reason === null ? "written by the model" : `${reasonWord(block.reason)}: ${reasonMeaning(block.reason)}`;
  const whose = block.owners.length && block.reason !== null ? `of ${ownersWords(block.owners)}` : null;
  const use = block.ref_count > 1 ? `used by ${count(block.ref_count)} requests` : null;
  return [fate, whose, use, block.pinned ? "pinned" : null, STATES[block.state]].filter(Boolean).join("; ");
}

/** Runs of neighbours of which the same is to be said. */
export function groupsOf(blocks) {
  const groups = [];
  let start = 0;
  blocks.forEach((block, index) => {
    const words = fateWords(block);
    const last = groups.at(-1);
    const end = start + block.num_tokens;
    if (last?.words === words) Object.assign(last, { last: index, end });
    else groups.push({ first: index, last: index, start, end, words });
    start = end;
  });
  return groups;
}
