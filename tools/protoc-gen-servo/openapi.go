package main

import "errors"

func openapi(*schema) ([]byte, error) { return nil, errors.New("not written yet") }
