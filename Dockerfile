# docs/install.md says how to build and use this image.
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS build
# cpu: CPU builds of torch, where pip finds them. cuda: what the package index has, on Linux x86_64 a CUDA build.
ARG TORCH=cpu
# A further index, such as PyTorch's own of CPU builds, which on x86_64 are nowhere else.
ARG INDEX=
ARG EXTRAS=formats,parquet
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt constraints-cpu.txt ./
COPY supply/index_page.py supply/
COPY src src
# Versions are pinned by constraints.txt.
# hadolint ignore=DL3013
RUN python -m venv /opt/sortal \
    && export PATH="/opt/sortal/bin:$PATH" PIP_EXTRA_INDEX_URL="$INDEX" \
    && set -- -c constraints.txt \
    && if [ "$TORCH" = cpu ]; then \
         set -- "$@" -c constraints-cpu.txt; \
         pip install --quiet --dry-run --no-deps -r constraints-cpu.txt \
           || { echo "pip finds no CPU build of torch: pass --build-arg INDEX=ADDRESS, or TORCH=cuda" >&2; exit 1; }; \
       fi \
    && pip install --no-compile ".[$EXTRAS]" "$@"

FROM python:${PYTHON}-slim
COPY --from=build /opt/sortal /opt/sortal
# Any user may run it, as with --user "$(id -u):$(id -g)", so that what is written belongs to whoever runs it.
RUN useradd --create-home --uid 1000 sortal \
    && mkdir /work /home/sortal/.cache \
    && chown sortal:sortal /work \
    && chmod 0777 /home/sortal /home/sortal/.cache
ENV PATH=/opt/sortal/bin:$PATH HOME=/home/sortal PYTHONUNBUFFERED=1
USER 1000
WORKDIR /work
EXPOSE 8000
ENTRYPOINT ["sortal"]
CMD ["--help"]
