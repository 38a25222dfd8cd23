# asyncli's completion for bash 4.4 and later. Loaded from share/bash-completion/completions, or: source <(asyncli completion bash)
_asyncli() {
    local current=${COMP_WORDS[COMP_CWORD]} kind value _
    # Bash makes a word of the = in --plan=smoke.
    [[ $current == = ]] && current=
    COMPREPLY=()
    while IFS=$'\t' read -r kind value _; do
        case $kind in
            word) COMPREPLY+=("$value") ;;
            files)
                compopt -o filenames
                mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -X "!$value" -- "$current"; compgen -d -- "$current")
                ;;
        esac
    done < <(_ASYNCLI_COMPLETE=1 "${1/#\~/$HOME}" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _asyncli asyncli
