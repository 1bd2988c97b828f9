variable "project" {
  description = "The project that everything is made in."
  type        = string
}

variable "region" {
  description = "Where services, queues and the bucket are."
  type        = string
}

variable "bucket" {
  description = "The name of the bucket of state; it must be free in all of Google Cloud."
  type        = string
}

variable "prefix" {
  description = "What the names of all resources begin with: one installation a prefix."
  type        = string
  default     = "servo"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,14}$", var.prefix))
    error_message = "A prefix has 2 to 15 letters, digits and hyphens: accounts have 30 in all."
  }
}

variable "images" {
  description = "The images of the programs, by servo-compactor, servo-dispatcher, servo-sweeper and servo-worker, with tag or digest."
  type        = map(string)
}

variable "keys" {
  description = "The name of the secret that has the keys which sign what workers are sent and report; docs/deploy.md says how it is made."
  type        = string
  default     = "servo-keys"
}

variable "worker_queues" {
  description = "The worker_queue of assets, each of which becomes a queue."
  type        = set(string)
  default     = ["default"]
}

variable "tenant_weights" {
  description = "How many turns a round tenants have where their tasks wait to be queued; others have 1."
  type        = map(number)
  default     = {}
}

variable "users" {
  description = "Who runs pipelines by the command line: user:jane@example.com, group:data@example.com."
  type        = set(string)
  default     = []
}

variable "worker" {
  description = "What one instance of the worker has, and how many tasks it executes at once; how many instances there are at most, and how many always: those can run tasks that take hours."
  type = object({
    cpu         = optional(string, "2")
    memory      = optional(string, "4Gi")
    concurrency = optional(number, 4)
    instances   = optional(number, 20)
    always_on   = optional(number, 0)
  })
  default = {}
}

variable "metrics_sidecar" {
  description = "The image of Google's Prometheus sidecar for Cloud Run; empty: no metrics, no alerts on them, and no dashboard."
  type        = string
  default     = ""
}

variable "traces" {
  description = "Where spans are sent, by OTLP over HTTP: https://collector.example:4318; empty: nowhere, unless there is a traces_sidecar."
  type        = string
  default     = ""
}

variable "traces_sidecar" {
  description = "The image of an OpenTelemetry collector, with its configuration, that takes spans at localhost:4318 beside each service and worker; empty: none."
  type        = string
  default     = ""
}

variable "trace_ratio" {
  description = "How many runs of all have their spans sent, more than 0 and up to 1."
  type        = number
  default     = 1
}

variable "full_sweep" {
  description = "When all domains are swept, not only those that are due, as a cron schedule in UTC."
  type        = string
  default     = "17 3 * * *"
}

variable "notification_channels" {
  description = "Who is told of alerts: the ids of notification channels."
  type        = list(string)
  default     = []
}

variable "delete_bucket" {
  description = "Whether destroying this deletes the bucket with all that is in it."
  type        = bool
  default     = false
}
