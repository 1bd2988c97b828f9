package project

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/servo-orchestration/servo/pkg/event"
)

// LoadSettings reads only servo.yaml. Commands that inspect runs use it, so that they also work if an asset file has
// problems.
func LoadSettings(dir string, o Options) (*Project, error) {
	l, err := read(dir, o, func(l *loader) error { l.readConfig(); return nil })
	if err != nil {
		return nil, err
	}
	if len(l.problems) > 0 {
		return nil, l.problems.Sorted()
	}
	return &l.project, nil
}

// LoadSchedules reads only servo.yaml and the files of schedules. It returns the schedules sorted by name. It does
// not check their selections.
func LoadSchedules(ctx context.Context, dir string, o Options) ([]event.Schedule, error) {
	l, err := read(dir, o, func(l *loader) error { l.readConfig(); return l.readSchedules(ctx) })
	if err != nil {
		return nil, err
	}
	l.collectSchedules()
	if len(l.problems) > 0 {
		return nil, l.problems.Sorted()
	}
	return l.project.Schedules, nil
}

// read opens the folder dir and reads a part of the project.
func read(dir string, o Options, part func(*loader) error) (*loader, error) {
	root, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("find project folder %s: %w", dir, err)
	}
	folder, err := os.OpenRoot(root)
	if err != nil {
		return nil, fmt.Errorf("open project folder: %w", err)
	}
	l := newLoader(folder.FS(), root, o)
	if err := errors.Join(part(l), folder.Close()); err != nil {
		return nil, fmt.Errorf("read project folder: %w", err)
	}
	return l, nil
}
