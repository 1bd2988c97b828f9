//go:build !linux

package main

func disk(string) (kind, device string) { return "unknown", "" }

func syncDisks() {}
