variable "project" {
  description = "The Google Cloud project of all resources."
  type        = string
}

variable "region" {
  description = "The region of the services, the queues and the bucket."
  type        = string
}

variable "bucket" {
  description = "The name of the state bucket. It must be unique in all of Google Cloud."
  type        = string
}

variable "prefix" {
  description = "The prefix of all resource names: one installation per prefix."
  type        = string
  default     = "servo"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,14}$", var.prefix))
    error_message = "A prefix has 2 to 15 letters, digits and hyphens: accounts have 30 in all."
  }
}

variable "images" {
  description = "The images of servo-compactor, servo-dispatcher, servo-sweeper and servo-worker, with tag or digest. Cloud Run notices a new image only by its name."
  type        = map(string)
}

variable "keys" {
  description = "The name of the secret that holds the keys of worker reports. docs/deploy.md says how to create it."
  type        = string
  default     = "servo-keys"
}

variable "worker_keys" {
  description = "The name of the secret that holds the keys of the requests to workers. Workers read it, too."
  type        = string
  default     = "servo-worker-keys"
}

variable "tenant_weights" {
  description = "The weight of each tenant when tasks of several tenants wait for dispatch. The default is 1."
  type        = map(number)
  default     = {}
}

variable "users" {
  description = "The users who run pipelines from the command line, and their tenants: { \"user:jane@example.com\" = [\"acme\"] }. The tenant * stands for all tenants."
  type        = map(set(string))
  default     = {}

  validation {
    condition     = alltrue([for tenants in values(var.users) : alltrue([for tenant in tenants : can(regex("^([a-z0-9-]{1,63}|\\*)$", tenant))])])
    error_message = "A tenant has 1 to 63 lower-case letters, digits and hyphens; * is all tenants."
  }
}

variable "services" {
  description = "The CPU and memory of each service's instances, and the maximum number of instances."
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
  description = "The workers, by the worker_queue that they execute. For each: its image (default: that of servo-worker), the CPU and memory of an instance, the number of concurrent tasks, and the minimum and maximum number of instances. Tasks that take hours need a minimum above 0. A worker with a url already runs there and is not created."
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
    error_message = "There must be a worker named default: it executes the assets that name no worker_queue."
  }
  validation {
    condition     = alltrue([for queue in keys(var.workers) : can(regex("^[a-z]([a-z0-9-]{0,24}[a-z0-9])?$", queue)) && queue != "timers"])
    error_message = "A worker_queue has up to 26 lower-case letters, digits and hyphens, begins with a letter and does not end with a hyphen, because the names of a queue and of a service contain it. The name timers is taken."
  }
  validation {
    condition     = alltrue([for worker in values(var.workers) : contains(["1", "2", "4", "6", "8"], worker.cpu) && can(regex("^[1-9][0-9]*(Mi|Gi)$", worker.memory))])
    error_message = "A worker has a cpu of 1, 2, 4, 6 or 8, and memory like 512Mi or 4Gi."
  }
  validation {
    condition     = alltrue([for worker in values(var.workers) : worker.concurrency >= 1 && worker.instances >= 1 && worker.always_on >= 0 && worker.always_on <= worker.instances])
    error_message = "A worker has a concurrency of 1 or more, instances of 1 or more, and an always_on from 0 to instances."
  }
  validation {
    condition     = alltrue([for worker in values(var.workers) : worker.url == "" || can(regex("^https://[^,=?#]+$", worker.url))])
    error_message = "The url of a worker begins with https://, and has no query."
  }
}

variable "metrics_sidecar" {
  description = "The image of Google's Prometheus sidecar for compactor and dispatcher. If empty, their metrics, the alerts on these, and the dashboard are left out."
  type        = string
  default     = ""
}

variable "traces" {
  description = "The OTLP endpoint for spans, over HTTP: https://collector.example:4318. If empty, spans go to the traces_sidecar, if there is one."
  type        = string
  default     = ""
}

variable "traces_sidecar" {
  description = "The image of a configured OpenTelemetry collector that receives spans at localhost:4318 beside each service and worker. If empty, no collector runs beside them."
  type        = string
  default     = ""
}

variable "trace_ratio" {
  description = "The fraction of runs whose spans are sent (0 < N <= 1)."
  type        = number
  default     = 1
}

variable "full_sweep" {
  description = "The cron schedule, in UTC, of the full sweep of all domains. It must run at least once a day; otherwise an alert fires."
  type        = string
  default     = "17 3 * * *"
}

variable "channel_secrets" {
  description = "The ids of the secrets that channels of alerts may use, in the same project: the dispatcher may read these secrets and no others. Releases name them as gcp:projects/PROJECT/secrets/ID."
  type        = list(string)
  default     = []
}

variable "notification_channels" {
  description = "The ids of the notification channels of the alerts."
  type        = list(string)
  default     = []
}

variable "delete_bucket" {
  description = "Whether destroying the module deletes the bucket with its contents."
  type        = bool
  default     = false
}
