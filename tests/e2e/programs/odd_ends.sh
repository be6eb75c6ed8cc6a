# Runs odd_end.py in all ways, each with its exit code in a line: bash odd_ends.sh PYTHON odd_end.py
end() {
    name=$1
    shift
    "$@" "$name" "$name.txt"
    echo "END $name $? $(cat "$name.txt" 2>&1)"
}
for way in code raises "at once" killed daemon nested; do
    end "$way" "$1" "$2"
done
PYTHONSAFEPATH=1 PYTHONPATH="$PYTHONPATH:$(dirname "$2")" end ended "$1" -W error -O "$2"
end closed "$1" "$2" <&- >&- 2>&-
echo "END closed $(cat closed.txt)"
end "no stderr" "$1" "$2"
umask 0777
end bare "$1" -I "$(dirname "$2")/bare_end.py"
