# goiwarp. `make demo` runs the main job, `make test` proves it; `make help` lists the rest.

GO      ?= go
BIN     := bin
TOOL    := $(GO) tool -modfile=internal/tools/go.mod
OTHERS  := darwin/amd64 darwin/arm64 windows/amd64 windows/arm64 freebsd/amd64 freebsd/arm64 linux/arm64
FUZZ_SECONDS ?= 240
KERNEL  ?= 6.1
PEER    ?= iserd
# What the compiler knows of the hot paths: PGO=off builds without it, faster.
PGO     ?= $(CURDIR)/packaging/default.pgo

.PHONY: help build test lint cross demo bench fuzz interop suites peers profile deb clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "%-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build the programs into bin/
	$(GO) build -trimpath -o $(BIN)/ ./cmd/...

test: ## run every test with the race detector
	$(GO) test -race -timeout 15m ./...

lint: cross ## vet, staticcheck, gofumpt, and a build for every system
	$(GO) vet ./...
	$(TOOL) staticcheck ./...
	@out=$$($(TOOL) gofumpt -l .); if [ -n "$$out" ]; then echo "not gofumpt-formatted:"; echo "$$out"; exit 1; fi

cross: ## build for the other systems
	@set -e; for t in $(OTHERS); do echo "build $$t"; CGO_ENABLED=0 GOOS=$${t%/*} GOARCH=$${t#*/} $(GO) build ./...; done

demo: build ## a disk over iSER and iSCSI on loopback: write 256 MiB, read it back, compare
	@tests/demo.sh $(BIN)

bench: ## the benchmarks with their ratios to raw TCP
	$(GO) test -p 1 -pgo=$(PGO) -run '^$$' -bench . -benchmem ./...

profile: ## measure anew what the compiler is told of the hot paths (a quiet machine)
	@d=$$(mktemp -d) && trap 'rm -rf $$d' EXIT && \
	$(GO) test -run '^$$' -bench 'DiskRead4K/^iser$$' -benchtime 200000x -trimpath -cpuprofile $$d/iser -o $$d/bin ./tests && \
	$(GO) test -run '^$$' -bench DiskRead4K -benchtime 100000x -trimpath -cpuprofile $$d/all -o $$d/bin ./tests && \
	$(GO) tool pprof -proto $$d/iser $$d/all > packaging/default.pgo

fuzz: ## fuzz every target for FUZZ_SECONDS in all
	@tests/fuzz.sh $(FUZZ_SECONDS)

interop: ## against Linux's siw, ib_iser and LIO in QEMU (Debian 12, root): KERNEL=6.1|6.12, FULL=1 for the whole matrix, LEGS=names
	@$(GO) build -o $(BIN)/interop ./tests/interop
	@cd tests/interop && ../../$(BIN)/interop -kernel $(KERNEL) $(if $(FULL),-full) $(if $(LEGS),-legs $(LEGS)) $(if $(SIW),-siw $(SIW)) $(if $(MTU),-mtu $(MTU))

peers: build ## our initiator against iserd, tgt and istgt (Debian, root): WRITE=1 puts the results into docs/interop.md
	@$(GO) run ./tests/peers -bin $(BIN) -install $(if $(WRITE),-write)

deb: ## a Debian package in bin/, with units and man pages: VERSION=x.y.z
	CGO_ENABLED=0 $(GO) build -pgo=$(PGO) -trimpath -ldflags '-s -w' -o $(BIN)/ ./cmd/...
	@packaging/debian/build.sh $(BIN) $(BIN) $(VERSION)

suites: build ## libiscsi's suite against iserd (Debian, root): PEER=tgt against tgt, WRITE=1 puts the results into docs/conformance/scsi.md
	@$(GO) run ./tests/suites -bin $(BIN) -install -peer $(PEER) $(if $(WRITE),-write)

clean: ## remove what was built
	rm -rf $(BIN)
