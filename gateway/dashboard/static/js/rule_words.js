// What each rule of the normalizer does, in a sentence for whoever is asked whether to turn it on.

const WORDS = {
  strip_cache_markers: "Drops markers such as cache_control, which say nothing to the model.",
  drop_null_message_fields: "Drops fields of messages that are null or empty lists.",
  strip_client_header: "Drops an accounting line that a known client writes at the very start of the system text.",
  single_part_to_string: "Writes a list of one plain text part as that text.",
  one_empty_content_form: "Writes an assistant turn without text in one form.",
  role_alias: "Gives the leading system and developer messages one role.",
  nfc_system: "Composes the letters of system text (Unicode NFC).",
  nbsp_to_space_system: "Makes blanks of the no-break spaces of system text.",
  drop_leading_bom: "Drops byte order marks in front of system text.",
  trim_end_of_system: "Drops white space at both ends of system text.",
  crlf_to_lf_system: "Ends the lines of system text with a line feed.",
  sort_tagged_lists: "Sorts the entries of declared lists in system text.",
  drop_empty_tools: "Treats an empty list of tools like none.",
  drop_unset_tool_fields: "Treats a null beside a tool's schema like a field that is not there.",
  canonical_schema_keywords: "Puts the keywords of tool schemas in one order.",
  sort_set_like_arrays: "Sorts arrays of tool schemas that are sets, such as required.",
  canonical_tool_order: "Puts tools in the order of their names. The order may sway a model: leave it off where you rely on one.",
  order_tool_results_by_call: "Puts tool results in the order of their calls.",
  overwrite_client_salt: "Drops a client's cache_salt: who shares with whom follows from who is authenticated.",
  image_digest: "Names an image by its bytes, so that the same image at another address is the same.",
  relocate_volatile: "Moves clocks, ids and counters out of system text and tool descriptions to behind the newest words of the user. They then count as the user's text.",
  first_seen: "Keeps tools and their schemas in the order in which the tenant sent them first.",
  echo_repair: "Gives an assistant turn that comes back slightly changed the very bytes that were returned.",
  reasoning_restore: "Puts back reasoning that a client dropped from earlier turns.",
  context_policy: "Cuts chats that grow too long for the model, in few large steps, so that their beginning stays cached: old tool results, long documents and old turns are left out, and passages of them given where a question needs them.",
  canonical_call_ids: "Numbers the ids of tool calls by their place.",
};

export const ruleWords = (rule) => WORDS[rule] ?? "";
