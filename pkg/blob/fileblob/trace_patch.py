s=open('disk_internal_test.go').read()
s=s.replace('''func (d *disk) at() error {
''','''func (d *disk) at() error {
	if os.Getenv("TR") != "" { var pcs [8]uintptr; n := runtime.Callers(2, pcs[:]); fr := runtime.CallersFrames(pcs[:n]); out := ""; for { f, more := fr.Next(); out += " " + filepath.Base(f.File) + ":" + strconv.Itoa(f.Line); if !more { break } }; println(d.dir, d.in, d.fate, out) }
''').replace('"syscall"','').replace('import (','import (\n"strconv"\n')
open('disk_internal_test.go','w').write(s)
s=open('crash_internal_test.go').read()
s=s.replace('''	switch {
	case died:
''','''	if os.Getenv("TR") != "" { println("STEP", w.steps, i, op.what, died, fmt.Sprint(err), w.all) }
	switch {
	case died:
''')
open('crash_internal_test.go','w').write(s)
