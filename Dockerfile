# The gateway with its engine:      docker build -t prefixgate .
# In front of other servers, small: docker build -t prefixgate --build-arg EXTRAS=postgres .
#
# torch comes as its platform's default, on Linux with CUDA. TORCH_INDEX names another wheel index, such as that of the CPU
# builds; see "Torch" in README.md.

FROM python:3.11-slim AS build
ARG EXTRAS=engine,postgres
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/prefixgate
ENV PATH=/opt/prefixgate/bin:$PATH
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
RUN if [ -n "$TORCH_INDEX" ]; then pip install --index-url "$TORCH_INDEX" "$(grep '^torch==' constraints.txt)"; fi
COPY gateway gateway
COPY prefixcache prefixcache
COPY engine engine
COPY kernels kernels
COPY migrations migrations
RUN pip install --constraint constraints.txt --editable ".[$EXTRAS]"

FROM python:3.11-slim
RUN useradd --create-home --uid 10001 prefixgate \
    && install -d -o prefixgate -g prefixgate /home/prefixgate/.cache /home/prefixgate/.local /home/prefixgate/.local/share
COPY --from=build /opt/prefixgate /opt/prefixgate
COPY --from=build /app /app
ENV PATH=/opt/prefixgate/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PREFIXGATE_HOST=0.0.0.0 \
    PREFIXGATE_PORT=8000
USER 10001
WORKDIR /home/prefixgate
# Models and compiled kernels; the SQLite database and its pepper.
VOLUME ["/home/prefixgate/.cache", "/home/prefixgate/.local/share"]
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import os, urllib.request; urllib.request.urlopen(f'http://127.0.0.1:{os.environ[\"PREFIXGATE_PORT\"]}/health', timeout=4)"]
ENTRYPOINT ["prefixgate"]
CMD ["serve"]
