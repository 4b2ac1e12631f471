# shellcheck shell=bash disable=SC2154  # lib.sh is sourced before this
# The runner behind scripts/regress and scripts/isolation.

# run_golden TOOL DIRECTORY INPUTS SUFFIX [--accept] [NAME...]
run_golden() {
    local tool=$1 suite=$root/$2 inputs=$3 suffix=$4 accept=false names=() file name status=0 run
    shift 4
    while [ "$#" -gt 0 ]; do
        case $1 in
        --accept) accept=true ;;
        *) names+=("$1") ;;
        esac
        shift
    done
    if [ "${#names[@]}" -eq 0 ]; then
        for file in "$suite/$inputs"/*."$suffix"; do
            [ -e "$file" ] && names+=("$(basename "$file" ".$suffix")")
        done
    fi
    if [ "${#names[@]}" -eq 0 ]; then
        say "no tests in ${suite#"$root"/}/$inputs"
        return
    fi

    cluster_start "shared_preload_libraries = 'xdb'"
    # The server's user may not be able to read the working tree.
    make_work_dir
    run=$work_dir
    mkdir -p "$run/$inputs" "$run/expected" "$run/out"
    for name in "${names[@]}"; do
        [ -f "$suite/$inputs/$name.$suffix" ] || die "no test $inputs/$name.$suffix"
        cp "$suite/$inputs/$name.$suffix" "$run/$inputs/"
        if [ -f "$suite/expected/$name.out" ]; then
            cp "$suite/expected/$name.out" "$run/expected/"
            # What another major version of Postgres says in its own words.
            for file in "$suite/expected/${name}"_[0-9].out; do
                [ ! -f "$file" ] || cp "$file" "$run/expected/"
            done
        else
            # A test without expected output fails by its difference, and shows it.
            : >"$run/expected/$name.out"
        fi
        printf 'test: %s\n' "$name" >>"$run/schedule"
    done
    give_to_server_user "$run"

    (
        cd "$run" && as_server_user "$pg_test_tools/$tool" --inputdir="$run" --outputdir="$run/out" \
            --bindir="$pg_bin" --host="$cluster_dir" --port=5432 --user=postgres --dbname=golden \
            --load-extension=xdb --schedule="$run/schedule" </dev/null
    ) || status=$?
    # To a server of version 15 a specification that can't be read is a result like any other.
    if grep -H '^syntax error at line' "$run/out/results"/*.out; then
        return 1
    fi
    if $accept && [ "$status" -le 1 ]; then
        mkdir -p "$suite/expected"
        for name in "${names[@]}"; do
            # Not cp: the copy belongs to whoever runs this, not to the server's user.
            cat "$run/out/results/$name.out" >"$suite/expected/$name.out"
        done
        say "accepted ${#names[@]} results into ${suite#"$root"/}/expected"
        return
    fi
    if grep '^TRAP: ' "$cluster_log"; then
        say "(from the server's log: an assertion that failed)"
        status=1
    fi
    if [ "$status" -ne 0 ]; then
        [ ! -f "$run/out/regression.diffs" ] || cat "$run/out/regression.diffs"
        if grep -E 'PANIC|FATAL|TRAP|was terminated by signal' "$cluster_log"; then
            say "(from the server's log)"
        fi
    fi
    return "$status"
}
