# asyncli's completion for fish. Loaded from share/fish/vendor_completions.d, or: asyncli completion fish | source
function _asyncli_complete
    set -l words (commandline -opc)
    set -l current (string unescape -- (commandline -ct); or commandline -ct)
    set -l flag (string match -r -- '^--[^=]*=' $current)
    for line in (_ASYNCLI_COMPLETE=1 $words[1] $words[2..] $current 2>/dev/null)
        set -l parts (string split \t -- $line)
        switch $parts[1]
            case word
                printf '%s\t%s\n' $parts[2] $parts[3]
            case files
                set -l ends (string escape --style=regex -- (string replace '*' '' -- $parts[2]))
                for path in (__fish_complete_path (string replace -- "$flag" '' $current))
                    string match -qr -- "(/|$ends)(\t|\$)" $path; and printf '%s%s\n' "$flag" $path
                end
        end
    end
end
complete --command asyncli --no-files --arguments '(_asyncli_complete)'
