# shellcheck shell=bash disable=SC2034  # most variables are for the scripts that source this
# What the scripts share: messages, clean-up, privileges, and a throwaway Postgres cluster.
# To be sourced after `set -euo pipefail`.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PATH="${CARGO_HOME:-${HOME:-/root}/.cargo}/bin:$PATH"

# A backtrace in the server's environment ends up in the DETAIL of every error; connection defaults of
# the caller's shell would point psql at somebody else's server.
unset RUST_BACKTRACE RUST_LIB_BACKTRACE
unset PGHOST PGHOSTADDR PGPORT PGUSER PGPASSWORD PGDATABASE PGDATA PGSERVICE PGOPTIONS PGTZ PGDATESTYLE

say() { printf '%s\n' "$*"; }
die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 1
}

# --- clean-up: the last thing registered is undone first --------------------------------------------

deferred=()
defer() { deferred=("$1" ${deferred[@]+"${deferred[@]}"}); }
run_deferred() {
    local status=$? command
    trap - EXIT INT TERM HUP
    set +e
    for command in ${deferred[@]+"${deferred[@]}"}; do
        eval "$command"
    done
    exit "$status"
}
trap run_deferred EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# A private directory, removed at the end. The path is short because socket paths are limited to 107 bytes.
make_work_dir() {
    work_dir=$(mktemp -d /tmp/xdb-XXXXXX)
    defer "rm -rf '$work_dir'"
}

# quietly LOG COMMAND...: the output goes to LOG and is shown only when the command fails.
quietly() {
    local log=$1 status=0
    shift
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if [ "$status" -ne 0 ]; then
        cat "$log" >&2
    fi
    return "$status"
}

# long_build LOG COMMAND...: the same for a build of minutes, whose progress a terminal shows.
long_build() {
    if [ -t 2 ]; then
        shift
        "$@" >&2 </dev/null
    else
        quietly "$@"
    fi
}

# timed NAME COMMAND...: a heading before, the outcome and the seconds after.
timed() {
    local name=$1 began=$SECONDS status=0
    shift
    printf '\n=== %s\n' "$name"
    "$@" || status=$?
    if [ "$status" -eq 0 ]; then
        printf '=== %s: ok (%d s)\n' "$name" $((SECONDS - began))
    else
        printf '=== %s: FAILED (%d s)\n' "$name" $((SECONDS - began))
    fi
    return "$status"
}

# eventually SECONDS COMMAND...: repeats the command until it succeeds; fails at the deadline.
eventually() {
    local deadline=$((SECONDS + $1))
    shift
    until "$@"; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.1
    done
}

# --- privileges -------------------------------------------------------------------------------------

is_root() { [ "$(id -u)" -eq 0 ]; }

# Checked before the first as_root, whose own output may be kept away in a log.
need_root_for() {
    is_root || command -v sudo >/dev/null || die "$1 needs root or sudo"
}

as_root() {
    if is_root; then
        "$@"
    else
        sudo "$@"
    fi
}

# Postgres refuses to run as root; everybody else runs the throwaway cluster as themselves.
as_server_user() {
    if is_root; then
        runuser -u postgres -- "$@"
    else
        "$@"
    fi
}

give_to_server_user() {
    if is_root; then
        chown -R postgres: "$@"
    fi
}

# Where scripts/setup --linters puts them.
linters_dir() { printf '%s\n' "${CARGO_TARGET_DIR:-$root/target}/linters"; }

# Where scripts/python-env puts the tools and packages of the Python SDK's tests.
python_env() { printf '%s\n' "${CARGO_TARGET_DIR:-$root/target}/python"; }

# --- the installed Postgres -------------------------------------------------------------------------

# Where scripts/postgres-from-source keeps what it has built.
built_servers() { printf '%s\n' "${XDB_POSTGRES_DIR:-${CARGO_TARGET_DIR:-$root/target}/postgres}"; }

# Whether PG chooses another server than the installed one, or that of PG_CONFIG.
is_other_server() { [ "${PG:-15}" != 15 ]; }

# PG=15-assert or PG=17 is a Postgres with assertions, built from source if it isn't yet; PG=/path/to/pg_config any other one.
find_pg_config() {
    if is_other_server; then
        # For scripts/pg-upgrade, which needs the installed one too.
        export XDB_INSTALLED_PG_CONFIG=${XDB_INSTALLED_PG_CONFIG-${PG_CONFIG:-}}
        case $PG in
        */*) PG_CONFIG=$PG ;;
        *)
            PG_CONFIG=$(built_servers)/postgresql-${PG%-assert}-assert/bin/pg_config
            [ -f "${PG_CONFIG%/bin/pg_config}/complete" ] ||
                "$root/scripts/postgres-from-source" "${PG%-assert}" </dev/null
            ;;
        esac
    fi
    if [ -z "${PG_CONFIG:-}" ]; then
        PG_CONFIG=/usr/lib/postgresql/15/bin/pg_config
        [ -x "$PG_CONFIG" ] || PG_CONFIG=/usr/bin/pg_config
    fi
    [ -x "$PG_CONFIG" ] || die "no pg_config at $PG_CONFIG: run scripts/setup, or set PG_CONFIG"
    export PG_CONFIG
    pg_bin=$("$PG_CONFIG" --bindir)
    pg_test_tools=$(dirname "$("$PG_CONFIG" --pgxs)")/../test
}

pg_major() { "$PG_CONFIG" --version | sed -E 's/^[^0-9]*([0-9]+).*/\1/'; }

# Whether cargo-pgrx was told about this major version: `cargo pgrx init`.
pgrx_knows_major() { grep -qsE "^pg$(pg_major) *=" "${PGRX_HOME:-${HOME:-}/.pgrx}/config.toml"; }

# crates COMMAND [ARGUMENT...]: cargo with all crates but the extension. What is built of them is always chosen from all of them:
# dependencies have the features that the chosen crates ask for, and cargo builds them again for each other choice.
crates() { cargo "$1" -q --workspace --exclude xdb "${@:2}" </dev/null; }

# program NAME: builds a program of the crates. `program` is its file.
program() {
    crates build --bin "$1"
    program=${CARGO_TARGET_DIR:-$root/target}/debug/$1
}

# console_parts: what drives the console in a browser. Debian's Chromium, Playwright, a server with the extension, and the program.
console_parts() {
    find_pg_config
    "$root/scripts/python-env"
    command -v chromium >/dev/null || "$root/scripts/setup" chromium fonts-dejavu-core
    program xdb
    export XDB_PROGRAM=$program PYTHONDONTWRITEBYTECODE=1
}

# choose_build: `build_target` is cargo's directory for what is built for the server of PG_CONFIG, and `build_settings` the
# environment of such a build.
choose_build() {
    build_target=${CARGO_TARGET_DIR:-$root/target} build_settings=()
    # The bindings are made from that server's headers, and those of two servers of one major version would take turns in one
    # directory.
    if is_other_server && [ "$(pg_major)" = 15 ]; then build_target=$build_target/for-another-15; fi
    if is_other_server || ! pgrx_knows_major; then
        build_settings=("CARGO_TARGET_DIR=$build_target" "PGRX_PG_CONFIG_PATH=$PG_CONFIG")
    fi
}

# lock_stage: two runs in one tree would empty each other's stage, or copy half of it. The lock is on the directory itself: no
# lock file can be left behind or belong to another user. It ends with the script; what it starts for long is not given it.
lock_stage() {
    exec 8<"$root"
    flock 8
}

# The version of the schema. It changes with the minor version alone, so patch versions leave it as it is.
schema_version() { sed -n "s/^default_version = '\(.*\)'$/\1/p" "$root/xdb.control"; }

# sql_files [DIRECTORY]: the files that a new installation runs, in their order.
sql_files() { sed -nE "s|^pgrx::extension_sql_file!\(\"\.\./(${1:-sql}/[^\"]+)\".*|\1|p" "$root/src/lib.rs"; }

# The steps from each minor version to the next, in their order.
update_steps() { find sql/updates -name '*--*.sql' | sort -V; }

# update_script STEP...: an update script: how every update begins, these steps, and all of sql/always.
update_script() { sql_files sql/always | xargs cat sql/updates/begin.sql "$@"; }

# package_extension NAME [ARGUMENT...]: builds the extension for the server of PG_CONFIG. `stage` is the directory with its
# files, each under the path where that server looks for it. Each NAME has one of its own.
package_extension() {
    local name=$1
    shift
    choose_build
    stage=$build_target/$name
    rm -rf "$stage"
    mkdir -p "$stage"
    long_build "$work_dir/build.log" env ${build_settings[@]+"${build_settings[@]}"} cargo pgrx package \
        --pg-config "$PG_CONFIG" --out-dir "$stage" --no-default-features --features "pg$(pg_major)" "$@" ||
        die "the extension could not be built"
    # cargo-pgrx leaves out the install scripts of earlier versions, which an update can start from.
    local step steps scripts
    scripts=$stage$("$PG_CONFIG" --sharedir)/extension
    find sql -maxdepth 1 -name 'xdb--*.sql' -exec cp -n {} "$scripts/" ';'
    mapfile -t steps < <(update_steps)
    while [ "${#steps[@]}" -gt 0 ]; do
        step=${steps[0]##*/}
        update_script "${steps[@]}" >"$scripts/xdb--${step%%--*}--$(schema_version).sql"
        steps=("${steps[@]:1}")
    done
}

# copy_postgres DIRECTORY: a copy of Postgres, to install into what no other server may ever load. PG_CONFIG is that of the
# copy afterwards; others find the copy's paths from where it runs.
copy_postgres() {
    local copy=$1 option from
    find_pg_config
    mkdir "$copy"
    for option in --bindir --pkglibdir --sharedir; do
        from=$("$PG_CONFIG" "$option")
        mkdir -p "$copy$from"
        cp -a "$from/." "$copy$from/"
    done
    chmod -R a+rX "$copy"
    PG_CONFIG=$copy$pg_bin/pg_config
    # It is that one from here on, whichever it is a copy of.
    export PG=
    find_pg_config
}

# hooked_postgres: a throwaway copy of Postgres with a build of the extension that has crash points and tests of its own,
# which no other server may ever load. PG_CONFIG is that of the copy afterwards.
hooked_postgres() {
    find_pg_config
    make_work_dir
    chmod a+rx "$work_dir"
    lock_stage
    # The only build of the extension with cargo's profile dev, whose dependencies are also those of the tests and of clippy.
    package_extension hooked --debug --features crash-points,pg_test 8>&-
    copy_postgres "$work_dir/postgres"
    cp -a "$stage/." "$work_dir/postgres/"
    exec 8<&-
    chmod -R a+rX "$work_dir/postgres"
}

# --- Debian's releases --------------------------------------------------------------------------------

# The release of Debian whose Postgres has this major version.
release_of() {
    case $1 in
    15) printf 'bookworm\n' ;;
    17) printf 'trixie\n' ;;
    18) printf 'forky\n' ;;
    *) die "which major version? 15, 17 or 18" ;;
    esac
}

# debian_sources deb|deb-src RELEASE: lines for apt, with the mirrors that this machine uses: Debian's own archive and its security
# updates.
debian_sources() {
    local kind=$1 release=$2 label uri suite
    # shellcheck disable=SC2016  # apt's variables, not the shell's
    mirrors() { apt-get indextargets --format '$(LABEL)|$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | sort -u; }
    if [ -z "$(mirrors)" ]; then
        need_root_for "apt-get update"
        quietly "$work_dir/update.log" as_root apt-get update -q || die "apt-get update failed"
    fi
    while IFS='|' read -r label uri; do
        case $label in
        Debian) suite=$release ;;
        Debian-Security) suite=$release-security ;;
        *) continue ;;
        esac
        # A mirror's lists of a release that is not out yet may be older than their week.
        printf '%s [check-valid-until=no signed-by=%s] %s %s main\n' "$kind" /usr/share/keyrings/debian-archive-keyring.gpg "$uri" "$suite"
    done < <(mirrors)
}

# --- planted faults ---------------------------------------------------------------------------------

# plant_patches NAME: the patches of this plant, by their whole paths: what it says it needs besides comes first.
plant_patches() {
    local directory=$root/tests/torture/plants
    [ -f "$directory/$1.patch" ] || die "no plant is called $1"
    sed -n "/^diff /q; s|^With: \(.*\)|$directory/\1.patch|p" "$directory/$1.patch"
    printf '%s\n' "$directory/$1.patch"
}

# copy_tree DIRECTORY: a copy of the tree, for patches.
#
# The copy is always at the same place, so that cargo keeps what other crates it has built. Its files are all new, or cargo would take
# what an earlier run has patched for the file that was there before. It is a repository of its own: `git apply` in a directory of
# another one leaves out, without a word, what is not below it.
copy_tree() {
    local file
    rm -rf "$1"
    mkdir -p "$1"
    git ls-files -z -co --exclude-standard | while IFS= read -r -d '' file; do
        if [ -e "$file" ]; then printf '%s\0' "$file"; fi
    done | tar -c --null -T - | tar -xm -C "$1"
    git -C "$1" init -q
}

# planting_ground: a copy of the tree and one of Postgres, for `planted`. `planted_config` is the pg_config of the latter.
planting_ground() {
    find_pg_config
    make_work_dir
    chmod a+rx "$work_dir"
    planted_config=$(copy_postgres "$work_dir/postgres" && printf '%s' "$PG_CONFIG")
    planted_target=${CARGO_TARGET_DIR:-$root/target}/plants
    planted_tree=$planted_target/tree
    copy_tree "$planted_tree"
}

# planted NAME: a build with this fault, in the copy of Postgres. One that can't be built proves nothing, and ends the script.
planted() {
    local files
    mapfile -t files < <(plant_patches "$1")
    cd "$planted_tree" || exit
    git apply "${files[@]}"
    CARGO_TARGET_DIR=$planted_target/build package_extension "stage-$1" --debug --features crash-points
    git apply -R "${files[@]}"
    cd "$root" || exit
    cp -a "$stage/." "$work_dir/postgres/"
    chmod -R a+rX "$work_dir/postgres"
}

# --- a throwaway cluster ----------------------------------------------------------------------------

# cluster_start [SETTING...]: a new cluster that only this machine's user can reach, over a socket in a
# private directory and no TCP port, so it never collides with another server. Gone when the script ends.
cluster_start() {
    find_pg_config
    cluster_dir=$(mktemp -d "${XDB_TEST_DIR:-/tmp}/xdb-XXXXXX")
    defer "rm -rf '$cluster_dir'"
    cluster_log=$cluster_dir/server.log
    give_to_server_user "$cluster_dir"
    (
        cd /
        quietly "$cluster_dir/initdb.log" as_server_user "$pg_bin/initdb" -D "$cluster_dir/data" -U postgres \
            --auth=trust --encoding=UTF8 --locale=C.UTF-8 --no-sync --no-instructions || die "initdb failed"
    )
    {
        printf "listen_addresses = ''\n"
        printf "unix_socket_directories = '%s'\n" "$cluster_dir"
        printf 'port = 5432\nfsync = off\n'
        printf "log_line_prefix = '%%m [%%p] %%q%%u@%%d '\n"
        printf '%s\n' "$@"
    } >>"$cluster_dir/data/postgresql.conf"
    defer cluster_stop
    (
        cd /
        as_server_user "$pg_bin/pg_ctl" start -D "$cluster_dir/data" -l "$cluster_log" -w -t 60 -s </dev/null
    ) || {
        cat "$cluster_log" >&2
        die "the throwaway cluster did not start"
    }
}

cluster_stop() {
    (
        cd /
        as_server_user "$pg_bin/pg_ctl" stop -D "$cluster_dir/data" -m fast -w -t 20 -s ||
            as_server_user "$pg_bin/pg_ctl" stop -D "$cluster_dir/data" -m immediate -w -t 20 -s
    ) >/dev/null 2>&1 || true
}

# cluster_psql ROLE DATABASE [psql arguments...]
cluster_psql() {
    local role=$1 database=$2
    shift 2
    "$pg_bin/psql" -X -q -v ON_ERROR_STOP=1 -h "$cluster_dir" -p 5432 -U "$role" -d "$database" "$@"
}
