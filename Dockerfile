# kvwatch without a GPU runtime inside: NVIDIA's container toolkit mounts the driver's library where it is wanted.
#
#   docker build -t kvwatch .
#   docker run --rm -p 127.0.0.1:9836:9836 kvwatch demo --listen 0.0.0.0:9836
#
# On a GPU node see the gpu profile of docker-compose.yml: it needs the host's process and network namespaces.

FROM python:3.11-slim-bookworm AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY kvwatch kvwatch
# What `kvwatch dashboards` writes.
COPY dashboards/json dashboards/json
COPY deploy deploy
# What `kvwatch help` shows.
COPY docs docs
RUN python -m venv /opt/kvwatch && /opt/kvwatch/bin/pip install --no-cache-dir --disable-pip-version-check .

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="kvwatch" \
      org.opencontainers.image.description="Live GPU memory and KV cache exporter for vLLM and llama.cpp" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/kvwatch /opt/kvwatch
# For the history; a volume that is mounted here first gets this owner. Group 0, so that root without capabilities may
# write too.
RUN install -d -o 65532 -g 0 -m 0770 /var/lib/kvwatch
ENV PATH=/opt/kvwatch/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
EXPOSE 9836
# Health touches no source: a hung driver must not get the daemon killed that reports it.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9836/-/healthy', timeout=2)"]
ENTRYPOINT ["kvwatch"]
CMD ["run", "--config", "/etc/kvwatch/kvwatch.yaml"]
