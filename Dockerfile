# Swivel with every extra, on the CPU, as a user without rights:
#
#     docker build --tag swivel .
#     docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD:/work" swivel run corpus.txt -o vectors
#
# Not built yet: the project's own machines have no Docker. TORCH_INDEX is where pip finds torch's CPU builds; the build
# that PyPI has for Linux brings several gigabytes of CUDA packages.

FROM python:3.12-slim AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
WORKDIR /source
COPY pyproject.toml MANIFEST.in README.md LICENSE constraints.txt requirements.lock ./
COPY src src
# The locked versions, without the tools of developers: the lock limits what the extras may bring.
RUN python -m venv /opt/swivel \
 && sed -n 's/^\([A-Za-z0-9_.-]*==[^ ;\\]*\).*/\1/p' requirements.lock > /tmp/versions.txt \
 && /opt/swivel/bin/pip install --no-cache-dir --index-url "$TORCH_INDEX" --constraint constraints.txt torch \
 && /opt/swivel/bin/pip install --no-cache-dir --constraint constraints.txt --constraint /tmp/versions.txt '.[all]'

FROM python:3.12-slim
COPY --from=build /opt/swivel /opt/swivel
RUN useradd --create-home --uid 1000 swivel && mkdir /work && chown swivel /work
USER swivel
WORKDIR /work
# A home, and a cache for compiled kernels, that every user of the container may write.
ENV PATH=/opt/swivel/bin:$PATH HOME=/tmp NUMBA_CACHE_DIR=/tmp/numba
ENTRYPOINT ["swivel"]
CMD ["--help"]
