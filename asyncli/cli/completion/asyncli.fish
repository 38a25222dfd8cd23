# asyncli's completion for fish. Loaded from share/fish/vendor_completions.d, or: asyncli completion fish | source
function _asyncli_complete
    set -l words (commandline -opc)
    for line in (_ASYNCLI_COMPLETE=1 $words[1] $words[2..] (commandline -ct) 2>/dev/null)
        set -l parts (string split \t -- $line)
        switch $parts[1]
            case word
                printf '%s\t%s\n' $parts[2] $parts[3]
            case files
                __fish_complete_suffix (string replace '*' '' -- $parts[2])
        end
    end
end
complete --command asyncli --no-files --arguments '(_asyncli_complete)'
