# What every target promises is in docs/reference/layout.md; each installs what it needs on Debian/Ubuntu.
.PHONY: build demo quick test test-all docker-matrix bench gpu-test soak packages docs screenshots setup clean

build:
	@tests/needs.sh cargo cc strip
	cargo xtask dist

setup:
	tests/setup.sh

# It builds only what it runs, unoptimized, in a third of the time of `make build`.
demo:
	@tests/needs.sh cargo cc strip python3
	cargo xtask dist demo
	tests/demo.sh target/demo/bin/cantle

# The loop of one change; CONTRIBUTING.md begins with it.
quick:
	cargo xtask quick

# The tests are compiled in the profile dev, and the program with them: a second profile is a second compilation of 500 crates. The filters in
# users' processes have a profile of their own, as always. `make soak` runs the suites on a release build.
test test-all: export CANTLE_PROFILE = dev
# Nobody opens a debugger: what is linked sixty times is smaller without line tables. A panic names its line without them.
test test-all: export CARGO_INCREMENTAL = 0
test test-all: export CARGO_PROFILE_DEV_DEBUG = none

# The gate: at most 30 minutes after a clone, on two cores.
test:
	@tests/needs.sh cargo cc strip python3
	cargo xtask dist
	cargo xtask test

# Everything: after the gate all other suites. Each installs what it needs.
test-all: test
	@tests/needs.sh cargo cc strip python3 npm go
	cargo xtask test --full

# Slices in containers of further engines (docs/containers.md); the first time it builds one of them, which takes ten minutes.
docker-matrix: build setup
	tests/docker/matrix.sh

bench: build
	tests/bench/run.sh
	cargo build --release --locked -q -p cantle-server --examples
	@dir=$$(mktemp -d) && target/release/examples/many_tasks $$dir $${CANTLE_BENCH_TASKS:-100000}; rm -rf $$dir
	@dir=$$(mktemp -d) && target/release/examples/rights $$dir; rm -rf $$dir
	@dir=$$(mktemp -d) && target/release/examples/usage_year $$dir; rm -rf $$dir
	tests/bench/fleet.sh

# What users install, into target/packages: tarball, .deb, .rpm, wheel, image, chart, SBOM, checksums (packaging/build.py).
# ARCH=aarch64 makes the packages of that architecture with a cross compiler, into target/packages-aarch64.
packages: CROSS = $(filter-out $(shell uname -m),$(ARCH))
packages: export CANTLE_COMMIT ?= $(shell git rev-parse --short=12 HEAD)
packages:
	@tests/needs.sh cargo cc strip python3 objdump $(CROSS:%=%-linux-gnu-gcc) $(CROSS:%=qemu-%-static)
	tests/venv.sh .venv-packages packaging/requirements.txt
	cargo xtask dist packages $(CROSS:%=--arch %)
	$(CROSS:%=cargo xtask verify-shim --arch %)
	.venv-packages/bin/python packaging/build.py $(CROSS)

# The documentation as a site with a search, into target/book. The first time it builds mdBook, which takes some minutes.
docs:
	@tests/needs.sh cargo cc
	@[ -x target/tools/bin/mdbook ] || cargo install --locked --quiet --root target/tools --version 0.5.4 mdbook
	target/tools/bin/mdbook build docs

# Needs an NVIDIA GPU and its driver; no network, no Docker. At most nine minutes, or MINUTES=N. ONLY=a,b runs the checks named so.
# CONTAINERS=IMAGE (with Python 3) adds slices in containers of the machine's engine.
gpu-test:
	tests/gpu/run.sh $(if $(ONLY),--only $(ONLY)) $(if $(CONTAINERS),--containers $(CONTAINERS)) $(if $(MINUTES),--minutes $(MINUTES))

soak: build setup
	tests/soak.sh

# The pictures of the web page in README and docs, into docs/screenshots.
screenshots: build
	tests/ui/run.sh screenshots

clean:
	rm -rf dist target
