# Mills the demonstration corpus, offline and as an ordinary user:
#
#     docker build --tag tokmill .
#     docker run --rm tokmill                                                  the demonstration
#     docker run --rm --volume "$PWD:/work" --user "$(id -u)" tokmill run /work/recipe.yaml
#
# Sources of the Hugging Face hub are read; other extras are named in the `pip install` below.

FROM python:3.12-slim-bookworm AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY recipes ./recipes
COPY src ./src
# as a variable it holds for what builds the wheel, too
ENV PIP_CONSTRAINT=/source/constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/tokmill && /opt/tokmill/bin/pip install '.[hub]'

FROM python:3.12-slim-bookworm
RUN useradd --create-home --uid 10001 miller
COPY --from=build /opt/tokmill /opt/tokmill
# a cache of compiled kernels that any user may write; without HOME there is nowhere else
RUN install --directory --mode 1777 /var/cache/numba
ENV PATH=/opt/tokmill/bin:$PATH NUMBA_CACHE_DIR=/var/cache/numba PYTHONUNBUFFERED=1
USER miller
WORKDIR /home/miller
ENTRYPOINT ["tokmill"]
CMD ["demo", "--out", "demo"]
