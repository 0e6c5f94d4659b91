#!/bin/sh
# The same without any SDK: a chat, a stream, tokens, and what the cache gave.
#
# OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none sh examples/curl.sh
set -eu
BASE_URL=${OPENAI_BASE_URL:-http://127.0.0.1:8000/v1}
API_KEY=${OPENAI_API_KEY:-none}
MODEL=${OPENAI_MODEL:-smollm2-135m-instruct}

ask() { # PATH BODY [curl options]
  path=$1 body=$2
  shift 2
  curl --fail-with-body --silent --show-error "$@" "$BASE_URL$path" \
    -H "authorization: Bearer $API_KEY" -H 'content-type: application/json' -d "$body"
}

CHAT='"messages": [{"role": "user", "content": "Name the capital of France."}], "temperature": 0, "max_tokens": 40'

echo "# one answer, and its header x-prefixgate-cache"
ask /chat/completions "{\"model\": \"$MODEL\", $CHAT}" --include | grep -iv '^date\|^server'

echo
echo "# streamed"
ask /chat/completions "{\"model\": \"$MODEL\", $CHAT, \"stream\": true, \"stream_options\": {\"include_usage\": true}}" --no-buffer

echo "# a completion of a plain prompt"
ask /completions "{\"model\": \"$MODEL\", \"prompt\": \"The clock in the hall\", \"max_tokens\": 16}"
echo
