package event

import (
	"maps"
	"slices"
	"strings"
)

// Categories of errors say where to look for the cause.
const (
	CategoryTransient      = "transient"      // the problem ends by itself: rate limits, networks, services
	CategoryResource       = "resource"       // memory, disk
	CategoryInfrastructure = "infrastructure" // the worker, the queue, the store
	CategoryTimeout        = "timeout"        // the work took too long
	CategoryUser           = "user"           // the query, the command
	CategoryInput          = "input"          // the data that the work reads
	CategoryQuality        = "quality"        // a check of the data
	CategoryConfiguration  = "configuration"  // the project, or how the worker is set up
	CategoryCancelled      = "cancelled"      // the run was cancelled, or a later attempt replaced the attempt
)

// Categories returns all categories, sorted.
func Categories() []string {
	return []string{
		CategoryCancelled, CategoryConfiguration, CategoryInfrastructure, CategoryInput, CategoryQuality, CategoryResource,
		CategoryTimeout, CategoryTransient, CategoryUser,
	}
}

// RetryableCategory reports whether errors of a category are marked as retryable by default. This includes the category
// "user", but the fold retries a retryable error of this category only if the task's policy says so.
func RetryableCategory(category string) bool {
	switch category {
	case CategoryTransient, CategoryResource, CategoryInfrastructure, CategoryTimeout, CategoryUser:
		return true
	}
	return false
}

// codes contains the category of each of Servo's own codes of errors. The list is closed: the codes of users begin with
// [UserCode].
var codes = map[string]string{
	"RATE_LIMITED": CategoryTransient, "NETWORK_ERROR": CategoryTransient, "SERVICE_UNAVAILABLE": CategoryTransient,
	"STORE_UNAVAILABLE": CategoryTransient, "SECRET_UNAVAILABLE": CategoryTransient, "MISSING_INPUT": CategoryTransient,
	"OUT_OF_MEMORY": CategoryResource, "DISK_FULL": CategoryResource,
	"WORKER_INTERRUPTED": CategoryInfrastructure, "WORKER_ERROR": CategoryInfrastructure, "HEARTBEAT_TIMEOUT": CategoryInfrastructure,
	"UNDISPATCHABLE": CategoryInfrastructure, "MARKER_MISSING": CategoryInfrastructure, "CHECKS_MISSING": CategoryInfrastructure,
	"TASK_TIMEOUT": CategoryTimeout, "RUN_TIMEOUT": CategoryTimeout,
	"SQL_ERROR": CategoryUser, "EXIT_STATUS": CategoryUser, "SIGNAL": CategoryUser, "COMMAND_NOT_FOUND": CategoryUser,
	"INVALID_INPUT": CategoryInput, "INVALID_MARKER": CategoryInput,
	"CHECK_FAILED": CategoryQuality, "CHECK_ERROR": CategoryQuality,
	"SECRET_MISSING": CategoryConfiguration, "PLAN_MISSING": CategoryConfiguration, "PLAN_UNREADABLE": CategoryConfiguration,
	"PROJECT_MISSING": CategoryConfiguration, "INVALID_OUTPUT": CategoryConfiguration, "RESOURCES_EXCEEDED": CategoryConfiguration,
	"EXTENSION_MISSING": CategoryConfiguration, "SOURCE_DENIED": CategoryConfiguration,
	"CANCELLED": CategoryCancelled, "SUPERSEDED": CategoryCancelled,
}

// UserCode is the prefix of the codes that users choose.
const UserCode = "X_"

// Codes returns Servo's own codes of errors, sorted.
func Codes() []string { return slices.Sorted(maps.Keys(codes)) }

// CategoryOf returns the category of one of Servo's own codes, or "".
func CategoryOf(code string) string { return codes[code] }

// ValidCode reports whether a code is one of Servo's own, or one that users may choose.
func ValidCode(code string) bool {
	if codes[code] != "" {
		return true
	}
	rest, own := strings.CutPrefix(code, UserCode)
	return own && rest != "" && len(code) <= maxCode && strings.Trim(rest, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") == ""
}

// maxCode is the maximum length of a code that users choose, in bytes.
const maxCode = 64

// MaxRetryRules is the maximum number of codes and categories in each list of a retry policy.
const MaxRetryRules = 32

// ValidRetryRule reports whether a text is a code or a category.
func ValidRetryRule(text string) bool {
	return ValidCode(text) || slices.Contains(Categories(), text)
}
