"""Why a request took no more from the cache, for operators and for clients that ask."""
