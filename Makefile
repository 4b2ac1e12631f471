# The work is done by scripts/; this file is the list of what there is.
.DEFAULT_GOAL := help
.PHONY: help demo demo-sql test test-upgrade explore large fuzz torture torture-plants cluster-delayed crash-points bench lint setup all install psql dist package-test

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' Makefile

demo: ## install what is missing, build, and watch two processes run (some minutes the first time)
	@scripts/demo

demo-sql: ## watch two orders that are handled by functions of the database, with psql alone
	@scripts/demo-sql

test: ## run every test suite (PG=15-assert, PG=17: against another server; see docs/internals/versions.md)
	@scripts/test

test-upgrade: ## pg_upgrade from 15 to the server of PG=
	@scripts/pg-upgrade

explore: ## try property tests with fresh seeds (MINUTES=, CASES=; see docs/internals/torture.md)
	@scripts/explore

large: ## tests of scale and the deadlock storm in their large form; half an hour or more
	@scripts/large

fuzz: ## hostile arguments and answers (SEED=, MINUTES=; see docs/internals/torture.md)
	@scripts/fuzz

torture: ## many processes under a schedule of faults (SEED=, MINUTES=, PROCESSES=; see docs/internals/torture.md)
	@scripts/torture

torture-plants: ## show that the rack finds faults that are planted in the engine
	@scripts/torture-plants

cluster-delayed: ## the cluster tests with an engine that stops now and then in the middle of its turns
	@scripts/cluster-delayed

crash-points: ## stop the server at each named point of the engine
	@scripts/crash-points

bench: ## measure speed; QUICK=1 takes four minutes (WORKLOADS=, RUNS=, SCALE=; see docs/performance.md)
	@scripts/bench

lint: ## format, clippy, walls, rooms, sizes, scripts
	@scripts/lint

setup: ## install what building needs (Debian 12; Rust is expected)
	@scripts/setup

all: ## build the extension for the Postgres of PG_CONFIG
	@scripts/build-extension

install: ## copy what was built into the Postgres of PG_CONFIG, or under DESTDIR
	@scripts/copy-extension

dist: ## the sources of the last commit as an archive for PGXN
	@scripts/dist

package-test: ## build the Debian package, the PGXN archive and the image, and use them in chroots (MAJOR=15, 17 or 18, PARTS=)
	@scripts/package-test $(or $(MAJOR),15) $(PARTS)

psql: ## psql on a throwaway server with XDB
	@scripts/cluster
