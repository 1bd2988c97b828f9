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
  description = "The images of the programs, by servo-compactor, servo-dispatcher, servo-sweeper and servo-worker, with tag or digest. Cloud Run notices a new image by its name only."
  type        = map(string)
}

variable "keys" {
  description = "The name of the secret that has the keys which sign what workers report; docs/deploy.md says how it is made."
  type        = string
  default     = "servo-keys"
}

variable "worker_keys" {
  description = "The name of the secret that has the keys which sign what workers are sent, and which workers have."
  type        = string
  default     = "servo-worker-keys"
}

variable "tenant_weights" {
  description = "How many turns a round tenants have where their tasks wait to be queued; others have 1."
  type        = map(number)
  default     = {}
}

variable "users" {
  description = "Who runs pipelines by the command line, and of which tenants: { \"user:jane@example.com\" = [\"acme\"] }. The tenant * is all of them."
  type        = map(set(string))
  default     = {}

  validation {
    condition     = alltrue([for tenants in values(var.users) : alltrue([for tenant in tenants : can(regex("^([a-z0-9-]{1,63}|\\*)$", tenant))])])
    error_message = "A tenant has 1 to 63 lower-case letters, digits and hyphens; * is all tenants."
  }
}

variable "services" {
  description = "What an instance of each service has, and how many instances there are at most."
  type = object({
    compactor  = optional(object({ cpu = optional(string, "1"), memory = optional(string, "1Gi"), instances = optional(number, 10) }), {})
    dispatcher = optional(object({ cpu = optional(string, "1"), memory = optional(string, "1Gi"), instances = optional(number, 10) }), {})
    sweeper    = optional(object({ cpu = optional(string, "1"), memory = optional(string, "512Mi"), instances = optional(number, 1) }), {})
  })
  default = {}

  validation {
    condition     = alltrue([for service in values(var.services) : can(regex("^[1-9][0-9]*(Mi|Gi)$", service.memory)) && contains(["1", "2", "4", "6", "8"], service.cpu) && service.instances >= 1])
    error_message = "A service has a cpu of 1, 2, 4, 6 or 8, memory like 512Mi or 2Gi, and 1 instance or more."
  }
}

variable "workers" {
  description = "The workers, by the worker_queue of assets that they execute. Of each its image (default: that of servo-worker), what an instance has, and how many tasks it executes at once; how many instances there are at most, and how many always: those can run tasks that take hours. One with a url serves there, and is not made here."
  type = map(object({
    image       = optional(string, "")
    cpu         = optional(string, "2")
    memory      = optional(string, "4Gi")
    concurrency = optional(number, 4)
    instances   = optional(number, 20)
    always_on   = optional(number, 0)
    url         = optional(string, "")
  }))
  default = { default = {} }

  validation {
    condition     = contains(keys(var.workers), "default")
    error_message = "There must be a worker named default: it executes what names no worker_queue."
  }
  validation {
    condition     = alltrue([for queue in keys(var.workers) : can(regex("^[a-z]([a-z0-9-]{0,24}[a-z0-9])?$", queue)) && queue != "timers"])
    error_message = "A worker_queue has up to 26 lower-case letters, digits and hyphens, begins with a letter and ends with none of the hyphens: it is in the names of a queue and of a service, and in its URL. The queue of timers is there already."
  }
  validation {
    condition     = alltrue([for worker in values(var.workers) : contains(["1", "2", "4", "6", "8"], worker.cpu) && can(regex("^[1-9][0-9]*(Mi|Gi)$", worker.memory))])
    error_message = "A worker has a cpu of 1, 2, 4, 6 or 8, and memory like 512Mi or 4Gi."
  }
  validation {
    condition     = alltrue([for worker in values(var.workers) : worker.concurrency >= 1 && worker.instances >= 1 && worker.always_on >= 0 && worker.always_on <= worker.instances])
    error_message = "A worker has a concurrency of 1 or more, and instances of 1 or more, of which some, or all, can be always_on."
  }
  validation {
    condition     = alltrue([for worker in values(var.workers) : worker.url == "" || can(regex("^https://[^,=?#]+$", worker.url))])
    error_message = "The url of a worker begins with https://, and has no query."
  }
}

variable "metrics_sidecar" {
  description = "The image of Google's Prometheus sidecar for Cloud Run, beside compactor and dispatcher; empty: no metrics of theirs, no alerts on these, and no dashboard."
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
  description = "When all domains are swept, not only those that are due, as a cron schedule in UTC: once a day at least, or an alert says that it was not."
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
