#compdef asyncli
# asyncli's completion for zsh. Loaded as _asyncli from a folder of $fpath, or, after compinit: source <(asyncli completion zsh)
_asyncli() {
    local kind value help
    local -a described patterns
    while IFS=$'\t' read -r kind value help; do
        case $kind in
            word) described+=("${value//:/\\:}:$help") ;;
            files) patterns+=("$value") ;;
        esac
    done < <(_ASYNCLI_COMPLETE=1 ${~words[1]} "${(@)words[2,CURRENT]}" 2>/dev/null)
    (( $#described )) && _describe -V 'asyncli' described
    (( $#patterns )) || return
    [[ $PREFIX == --*=* ]] && compset -P '*='
    _files -g "$patterns[1]"
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _asyncli "$@"
else
    compdef _asyncli asyncli
fi
